"""`RecentLog`: the last lines that this process logged, for the page."""

from __future__ import annotations

import logging
import threading
from typing import Self

from trident.redaction import RedactingFormatter
from trident.ui.cluster_pages import Page

TAIL_BYTES = 64 << 10
"""How much of a log is returned if no offset is given."""

_KEPT_BYTES = 1 << 20
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class RecentLog(logging.Handler):
    """Keeps the last mebibyte of what is logged at INFO and above. A context manager: it listens while it is open.

    Offsets count the bytes since it was opened.
    """

    def __init__(self, logger: str = "") -> None:
        super().__init__(logging.INFO)
        self.setFormatter(RedactingFormatter(_FORMAT))
        self._logger = logging.getLogger(logger)
        self._guard = threading.Lock()
        self._stored = bytearray()
        self._forgotten = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n".encode("utf-8", errors="replace")
        except Exception:  # noqa: BLE001  as every handler: what cannot be formatted must not end the program
            self.handleError(record)
            return
        with self._guard:
            self._stored += line
            over = len(self._stored) - _KEPT_BYTES
            if over > 0:
                del self._stored[:over]
                self._forgotten += over

    def page(self, offset: int | None = None) -> Page:
        """Return `{"text", "offset", "next"}` from an offset on, or the last 64 KiB."""
        with self._guard:
            return page_of_log(bytes(self._stored), self._forgotten, offset)

    def __enter__(self) -> Self:
        self._logger.addHandler(self)
        return self

    def __exit__(self, *raised: object) -> None:
        self._logger.removeHandler(self)


def page_of_log(stored: bytes, first: int, offset: int | None) -> Page:
    """Return a page of a log, of which `stored` is still there, beginning at offset `first`.

    An offset beyond the end is one of an earlier log: then the last part is returned. At most 64 KiB are returned at once; a
    character that is cut off comes with the next page.
    """
    end = first + len(stored)
    begin = max(end - TAIL_BYTES, first) if offset is None or offset > end else max(offset, first)
    part = stored[begin - first : begin - first + TAIL_BYTES]
    whole = part[: len(part) - _cut_short(part)]
    return {"text": whole.decode("utf-8", errors="replace"), "offset": begin, "next": begin + len(whole)}


def _cut_short(data: bytes) -> int:
    """Return how many bytes at the end begin a character of UTF-8 and do not end it."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # not a continuation
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if length > back else 0
    return 0
