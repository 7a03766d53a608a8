"""When a state is too large for the memory of its writer, and when changes are enough to be merged into its files."""

from __future__ import annotations

from collections.abc import Sequence

from states.delta.data_files import DataFile
from states.delta.options import DeltaOptions

__all__ = ["MemoryBounds"]

_KEY_BYTES = 300  # of a key in the memory of a writer, without long values
_NOT_MERGED = 4  # files of commits may repeat keys so often before they are counted as keys
_BASE_SHARE = 5  # a merge rewrites the whole base, so it waits until a fifth of it has changed


class MemoryBounds:
    """The bounds that the options of a state set."""

    def __init__(self, options: DeltaOptions) -> None:
        self._keys, self._bytes = options.max_keys_in_memory, options.max_mb_in_memory << 20

    @property
    def bytes_of_changes(self) -> int:
        """How many bytes the changes since the base may take before they are merged."""
        return self._bytes // 4

    def is_beyond(self, files: Sequence[DataFile]) -> bool:
        """Whether the rows of a version are too many for memory, as far as its files tell."""
        most, together = max((file.rows for file in files), default=0), sum(file.rows for file in files)
        return self.is_too_large(max(most, together // _NOT_MERGED), sum(file.size for file in files))

    def is_too_large(self, keys: int, size: int) -> bool:
        """Whether so many keys, and bytes of them on the disk, are too many for memory."""
        return keys > self._keys or keys * _KEY_BYTES + size > self._bytes

    def are_enough(self, changes: int, size: int, base: int) -> bool:
        """Whether so many changes, and bytes of them, are worth a merge into a base of so many rows."""
        return changes >= max(self._keys // 4, base // _BASE_SHARE) or size > self.bytes_of_changes
