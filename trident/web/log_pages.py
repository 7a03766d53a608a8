"""Logs for the page: the last lines of this process, a log in bounded pieces, and its records of a level and with a text."""

import codecs
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from trident.redaction import RedactingFormatter
from trident.web.cluster_pages import Page

ReadLog = Callable[[int | None], Page]  # returns a piece of a log from an offset on, see `ClusterPages.log`
TAIL_BYTES = 64 << 10  # how much of a log is returned if no offset is given
SEARCHED_BYTES = 1 << 20  # how much of the end of a log is searched
DOWNLOADED_BYTES = 16 << 20  # how much of the end of a log is downloaded
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

# The head of a record, as Trident and as Spark write it.
_HEAD = re.compile(r"\d\d(?:\d\d)?[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d[.,\d]* +([A-Z]+)\b")
_OTHER_NAMES = {"TRACE": "DEBUG", "WARN": "WARNING", "FATAL": "CRITICAL"}


class RecentLog(logging.Handler):
    """Keeps the last mebibyte of what is logged at INFO and above, while it is open; offsets count the bytes since then."""

    def __init__(self, logger: str = "") -> None:
        super().__init__(logging.INFO)
        self.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
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
            over = len(self._stored) - (1 << 20)
            if over > 0:
                del self._stored[:over]
                self._forgotten += over

    def page(self, offset: int | None = None) -> Page:
        with self._guard:
            return page_of_log(bytes(self._stored), self._forgotten, offset)

    def __enter__(self) -> Self:
        self._logger.addHandler(self)
        return self

    def __exit__(self, *raised: object) -> None:
        self._logger.removeHandler(self)


def page_of_log(stored: bytes, first: int, offset: int | None) -> Page:
    """Return a page of a log, of which `stored` is still there, beginning at offset `first`: 64 KiB at most.

    An offset beyond the end is one of an earlier log: then the last part is returned.
    """
    end = first + len(stored)
    begin = max(end - TAIL_BYTES, first) if offset is None or offset > end else max(offset, first)
    return decoded_page(stored[begin - first : begin - first + TAIL_BYTES], begin)


def decoded_page(data: bytes, begin: int) -> Page:
    """Return bytes as a page; a character that is cut off comes with the next one. `lineEnd`: where the last line ends."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    unfinished, _ = decoder.getstate()
    line_end = begin + data.rfind(b"\n") + 1
    return {"text": text, "offset": begin, "next": begin + len(data) - len(unfinished), "lineEnd": line_end}


def end_of_log(read: ReadLog, most: int = DOWNLOADED_BYTES) -> Iterator[Page]:
    """Iterate over the pieces of the last `most` bytes of a log. What is logged meanwhile is left out."""
    return pieces_of(read, max(0, int(read(None)["next"]) - most), most)


def pieces_of(read: ReadLog, offset: int, most: int) -> Iterator[Page]:
    """Iterate over the pieces of a log from an offset on, until it ends or about `most` bytes were read."""
    for _ in range(most // TAIL_BYTES + 1):
        page = read(offset)
        if not page["text"]:
            return
        yield page
        offset = int(page["next"])


def matching(read: ReadLog, offset: int | None, level: str | None, search: str) -> Page:
    """Return a page of a log with the records of a level or above, and with a text in them, upper or lower case alike.

    A record is a line with a level, and the lines without one that follow it. From `offset` on, or of the last mebibyte.
    `found` says how many there are; of more than 64 KiB of them the last ones are returned.
    """
    pages = list(end_of_log(read, SEARCHED_BYTES) if offset is None else pieces_of(read, offset, SEARCHED_BYTES))
    if not pages:
        return {**read(offset), "text": "", "found": 0}
    text, first, last = "".join(each["text"] for each in pages), int(pages[0]["offset"]), int(pages[-1]["next"])
    if offset is None and first:  # the line that is cut off
        text = text.partition("\n")[2]
    whole, _, rest = text.rpartition("\n")
    # A line that has not ended is read the next time; how long it is its text does not say, if it has bytes that are none.
    ends = (int(each["lineEnd"]) for each in reversed(pages) if each["lineEnd"] > each["offset"])
    following = next(ends, first if text else last)
    if not whole and len(rest) > TAIL_BYTES:  # no line
        whole, following = text, last
    found = [each for each in _records(whole) if _is_of(each, level) and search.lower() in each.lower()]
    return {"text": _last_of(found), "offset": first, "next": following, "found": len(found)}


def _last_of(records: Sequence[str]) -> str:
    shown: deque[str] = deque()
    size = 0
    for record in reversed(records):
        size += len(record) + 1
        if size > TAIL_BYTES and shown:
            break
        shown.appendleft(record[-TAIL_BYTES:] + "\n")
    return "".join(shown)


def _records(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in text.split("\n"):
        if lines and (_HEAD.match(line) or not _HEAD.match(lines[0])):
            yield "\n".join(lines)
            lines = []
        lines.append(line)
    yield "\n".join(lines)


def _is_of(record: str, level: str | None) -> bool:
    if level is None:
        return True
    head = _HEAD.match(record)
    name = "" if head is None else _OTHER_NAMES.get(head[1], head[1])
    return logging.getLevelNamesMapping().get(name, 0) >= logging.getLevelNamesMapping()[level]
