"""Writes segments: begins the next one with the whole folded state, appends records, removes old files."""

from __future__ import annotations

import logging
from pathlib import Path

from trident.coordination.framing import encode, frame
from trident.coordination.lock import SegmentName, list_log
from trident.coordination.log_file import LogFile, sync_directory
from trident.coordination.log_reader import header_of
from trident.coordination.log_state import LogState

__all__ = ["SegmentWriter"]

logger = logging.getLogger(__name__)


class SegmentWriter:
    """Writes the segments of one epoch. The claim decides who may do that."""

    def __init__(self, directory: Path, epoch: int, segment_bytes: int, file_type: type[LogFile]) -> None:
        self._directory, self._segment_bytes, self._file_type = directory, segment_bytes, file_type
        self._segment = SegmentName(epoch, 0)
        self._file: LogFile | None = None
        self._size = self._roll_at = 0
        self._synced = True  # is the last record durable?

    def begin(self, state: LogState, previous: SegmentName | None) -> None:
        """Begin the next segment with `state` and write to it from now on; remove what is older than `previous`."""
        segment = SegmentName(self._segment.epoch, self._segment.seq + 1)
        data = frame(encode(header_of(segment, state)), 0)
        temporary = self._directory / f"{segment.file}.tmp"
        file = self._file_type(temporary)
        try:
            file.write(data)
            file.sync()
            # It may become the newest segment only now, complete and durable.
            temporary.rename(self._directory / segment.file)
            sync_directory(self._directory)
        except BaseException:
            file.close()
            temporary.unlink(missing_ok=True)
            raise
        self.trim()
        self.close()
        self._file, self._segment, self._size, self._synced = file, segment, len(data), True
        # A state that is larger than a segment must not be written again with every record.
        self._roll_at = len(data) + max(self._segment_bytes, len(data))
        self._sweep(previous or segment)

    def append(self, payload: bytes, state: LogState, durable: bool = True) -> None:
        """Append a record to `state`; begin the next segment first if it is time.

        Returns when this record and all before it are durable; if not `durable`, when every process can read it.
        """
        if self._size >= self._roll_at:
            self.begin(state, self._segment)
        assert self._file is not None, "begin comes before append"
        data = frame(payload, self._size, self._synced)
        self._file.write(data)
        if durable:
            self._file.sync()
        self._size += len(data)
        self._synced = durable

    def take_back(self) -> None:
        """Cut off what a failed `append` left."""
        if self._file is not None:
            self._file.cut(self._size)

    def trim(self) -> None:
        """Free the space that was allocated in advance; nothing more will be written."""
        if self._file is not None:
            self._file.trim()

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _sweep(self, keep: SegmentName) -> None:
        """Remove segments before `keep`, claims before this epoch, and temporary files that crashes have left."""
        listing, epoch = list_log(self._directory), self._segment.epoch
        names = [each.file for each in listing.segments if each < keep]
        names += [f"epoch-{claim:08d}" for claim in listing.claims if claim < epoch]  # lowest first; see lock
        names += [name for of, name in listing.temporaries if of < epoch]
        for name in names:
            try:
                (self._directory / name).unlink(missing_ok=True)
            except OSError as error:
                # Stop here, because a claim must not be removed before a lower one.
                logger.warning("transaction log %s: cannot remove the old file %s: %s", self._directory, name, error)
                return
