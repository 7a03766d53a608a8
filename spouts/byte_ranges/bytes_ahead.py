"""How many bytes of files are still to be read, counted along with the definitions: no file is asked for it."""

from __future__ import annotations

__all__ = ["BytesAhead"]


class BytesAhead:
    """What was listed and not defined yet, and what was defined and is not committed yet."""

    def __init__(self) -> None:
        self._listed = 0
        self._in_flight: dict[int, int] = {}

    @property
    def amount(self) -> int:
        """The bytes that are not committed yet, as far as the files were listed."""
        return self._listed + sum(self._in_flight.values())

    def listed(self, size: int) -> None:
        """The files were listed, and have so many bytes that are in no batch yet."""
        self._listed = size

    def defined(self, txid: int, size: int, is_all: bool) -> None:
        """A batch takes so many of them; `is_all`: nothing that was listed is left, though a file may have grown since."""
        self._listed = 0 if is_all else max(0, self._listed - size)
        self._in_flight[txid] = size

    def committed(self, txid: int) -> None:
        """A batch is committed."""
        self._in_flight.pop(txid, None)
