"""Parquet files for the coordinator: immutable, and cut at row groups.

A range is the bytes from where one row group begins to where another does; the last one goes to the end of the file. The
checksum is that of the footer, which says where each column of each row group is, with its size and statistics.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from spouts.files.file_format import FileCut, Rest
from spouts.files.positions import Position
from spouts.files.ranges import FileRange, opened
from trident.errors import ReplayMismatchError, SpoutError

__all__ = ["Footer", "ParquetFiles"]

_MAGIC = b"PAR1"
_TAIL = 8


@dataclass(frozen=True)
class Footer:
    """What the end of a Parquet file says.

    Attributes
    ----------
    crc
        Of the footer's bytes, and of the size of the file.
    bounds
        Where the row groups begin, the first at 0, and the size of the file.
    """

    crc: int
    bounds: list[int]
    metadata: pq.FileMetaData

    @staticmethod
    def read(path: str, size: int, read_at: Callable[[int, int], bytes]) -> Footer | None:
        """Read the footer of a file of a size, with a function of length and offset; None if it has none (yet)."""
        tail = read_at(_TAIL, size - _TAIL) if size > _TAIL else b""
        length = int.from_bytes(tail[:4], "little") + _TAIL
        if tail[4:] != _MAGIC or length > size:
            return None
        data = read_at(length, size - length)
        try:
            metadata = pq.read_metadata(pa.BufferReader(data))
        except (pa.ArrowException, OSError) as error:
            raise SpoutError(f"the Parquet file {path} has a footer that cannot be read: {error}") from error
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        columns = [group.column(0) for group in groups if group.num_columns]
        starts = [one.dictionary_page_offset or one.data_page_offset for one in columns]
        bounds = [0, *starts[1:], size]
        is_cut = len(starts) == len(groups) and all(low < high for low, high in pairwise(bounds))
        return Footer(zlib.crc32(data, size & 0xFFFFFFFF), bounds if is_cut else [0, size], metadata)

    def groups(self, start: int, end: int) -> list[int]:
        """Return the numbers of the row groups that begin in a range of bytes."""
        if len(self.bounds) != self.metadata.num_row_groups + 1:  # they are not in order, and not told from each other
            return list(range(self.metadata.num_row_groups)) if start == 0 else []
        return [number for number, at in enumerate(self.bounds[:-1]) if start <= at < end]

    def weights(self, bytes_per_row: float) -> list[int]:
        """Return the unpacked bytes of the row groups, or a share for each of their rows if that is more."""
        found = []
        for low, high in pairwise(self.bounds):
            groups = [self.metadata.row_group(number) for number in self.groups(low, high)]
            unpacked, rows = sum(one.total_byte_size for one in groups), sum(one.num_rows for one in groups)
            found.append(max(unpacked, int(rows * bytes_per_row)))
        return found


@dataclass(frozen=True)
class ParquetFiles:
    """Parquet files, for the coordinator; `bytes_per_row` makes a limit of rows one of bytes."""

    bytes_per_row: float

    def is_whole(self, path: str) -> bool:
        """Return False: row groups are for tasks of their own."""
        return False

    def size(self, path: str, start: int, end: int) -> int:
        """Say how many packed bytes a range has."""
        return end - start

    def check_same(self, path: str, size: int, position: Position) -> None:
        """Make sure that a file that was read is still the same."""
        self._after(path, position)

    def position_at(self, path: str, offset: int) -> Position:
        """Return the position of a file that was read up to `offset`."""
        footer, _ = _footer_of(path)
        return Position(offset, 0 if footer is None else footer.crc)

    def find(
        self, path: str, before: Position | None, room: int, alone: bool, is_final: Callable[[os.stat_result], bool]
    ) -> FileCut:
        """Find the row groups that fit a batch, and at least one if it is empty."""
        footer, status = self._after(path, before)
        if footer is None:
            if not is_final(status):  # a writer writes the footer last
                return FileCut(None, Rest.HELD, None)
            raise SpoutError(
                f"{path} has no footer: it is no Parquet file, or its writer has not ended. Remove it, or leave it out "
                "with pattern"
            )
        at = footer.bounds.index(0 if before is None else before.offset)
        start, weight, end = at, 0, footer.bounds[at]
        for one in footer.weights(self.bytes_per_row)[start:]:
            if weight + one > room and not (alone and at == start):
                break
            at, weight, end = at + 1, weight + one, footer.bounds[at + 1]
        if at == start:
            return FileCut(None, Rest.NO_ROOM if at + 1 < len(footer.bounds) else Rest.NOTHING, None)
        rest = Rest.MORE if at + 1 < len(footer.bounds) else Rest.NOTHING
        return FileCut(FileRange(path, footer.bounds[start], end, footer.crc), rest, Position(end, footer.crc), weight)

    def _after(self, path: str, before: Position | None) -> tuple[Footer | None, os.stat_result]:
        footer, status = _footer_of(path)
        if before is not None and (footer is None or footer.crc != before.crc or before.offset not in footer.bounds):
            raise ReplayMismatchError(
                f"the Parquet file {path} was read up to byte {before.offset} and is another one now, of {status.st_size} "
                "bytes: it was replaced. Its rows up to there are counted already; give new content a name of its own"
            )
        return footer, status


def _footer_of(path: str) -> tuple[Footer | None, os.stat_result]:
    with opened(path) as file:
        status = os.fstat(file)
        return Footer.read(path, status.st_size, lambda length, at: os.pread(file, length, at)), status
