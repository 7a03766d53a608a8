"""How many bytes of files are still to be read, counted along with the definitions: no file is asked for it."""

from __future__ import annotations

import os

from trident.spout.interfaces import Definition

__all__ = ["BytesAhead"]

_KEPT = 100  # more than there are batches in flight


class BytesAhead:
    """What was listed and not defined yet, and what each of the last batches has."""

    def __init__(self) -> None:
        self._listed = 0
        self._defined = 0
        self._up_to: dict[tuple[str, int], int] = {}

    def listed(self, size: int) -> None:
        """The files were listed, and have so many bytes that are in no batch yet."""
        self._listed = size

    def defined(self, definition: Definition, is_all: bool) -> None:
        """A batch was defined; `is_all`: nothing that was listed is left, though a file may have grown since."""
        size = sum(int(end) - int(start) for _, start, end, _ in definition["ranges"])
        self._listed = 0 if is_all else max(0, self._listed - size)
        self._defined += size
        self._up_to[_end_of(definition)] = self._defined
        if len(self._up_to) > _KEPT:
            del self._up_to[next(iter(self._up_to))]

    def after(self, definition: Definition) -> int:
        """Return the bytes that are in no batch up to this one, as far as the files were listed."""
        return self._listed + self._defined - self._up_to.get(_end_of(definition), 0)


def _end_of(definition: Definition) -> tuple[str, int]:
    path, _, end, _ = definition["ranges"][-1]
    return os.fsdecode(definition["base"]) + os.fsdecode(path), int(end)
