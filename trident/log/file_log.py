"""The transaction log in files: it alone says durably which batches are committed.

It is a directory of segments, `{epoch:08d}-{seq:04d}.log`. A segment begins with the whole folded state and gets its name only
once that is durable: so opening a log compacts it, only the newest one is needed, and a new one cuts off a torn end.
"""

import errno
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Self

from trident.errors import LogError
from trident.log.framing import encode, frame
from trident.log.lock import Claim, SegmentName, list_log, os_error_text
from trident.log.log_interface import DurableLog, claim_log, first_kept
from trident.log.log_reader import LogReader, exists, read_payloads
from trident.log.log_state import LogState, header_of
from trident.log.records import Record
from trident.retention import Retention
from trident.roles import close_on_error
from trident.servers.local_processes import make_directory, sync_directory
from trident.state.kinds import LaterWrite

logger = logging.getLogger(__name__)

_SPACE = 64 << 10
_sync_data = getattr(os, "fdatasync", os.fsync)  # not every POSIX system has fdatasync


class LogFile:
    """A file that is only appended to, with zeros behind while it is open: a sync is faster if the size stays."""

    def __init__(self, path: Path) -> None:
        """Create `path`, which must not exist."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._size = self._space = 0

    def write(self, data: bytes) -> None:
        """Append all of `data`; after an error any part of it may have been written."""
        if self._size + len(data) > self._space:
            self._space = self._size + len(data) + _SPACE
            with suppress(OSError, AttributeError):  # no such call, or no room, although the data may still fit
                os.posix_fallocate(self._fd, self._size, self._space - self._size)
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._fd, rest, self._size)
            self._size, rest = self._size + written, rest[written:]

    def sync(self) -> None:
        """Return once everything written is durable; OSError also if the file has lost its name, because then it is lost."""
        _sync_data(self._fd)
        if not os.fstat(self._fd).st_nlink:
            gone = "its newest segment was removed or replaced while it was written (was log_dir restored from a copy?)"
            raise OSError(errno.ENOENT, gone)

    def cut(self, size: int) -> None:
        """Drop everything after the first `size` bytes, durably."""
        os.ftruncate(self._fd, size)
        os.fsync(self._fd)
        self._size = self._space = size

    def trim(self) -> None:
        """Free the space that was not needed. Only the writing process may call it, as its last action."""
        if self._fd >= 0:
            with suppress(OSError):  # the zeros are harmless
                os.ftruncate(self._fd, self._size)

    def close(self) -> None:
        """Close the file; harmless when it is closed already."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class FileLog(DurableLog):
    """The log in a directory. Threads may append at the same time; a forked child may not."""

    file_type: type[LogFile] = LogFile

    def __init__(self, path: Path, claim: Claim, state: LogState, segment_bytes: int) -> None:
        """Not for callers: use `open`."""
        self.path, self._claim, self._segment_bytes = path, claim, segment_bytes
        self._segment = SegmentName(claim.epoch, 0)
        self._file: LogFile | None = None
        self._size = self._roll_at = 0
        self._synced = True  # is the last record durable?
        super().__init__(path, state, claim.check)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        topology: str,
        takeover: bool = False,
        *,
        segment_bytes: int = 4 << 20,
        history: Retention | None = None,
    ) -> Self:
        """Open the log in the directory `path`, or make one there, and become its writer; after an error nothing was changed.

        `takeover`: replace a driver that holds the log, running or paused: its next append raises `FencedError`.
        `segment_bytes`: about when the next segment begins. `history`: how long segments are kept; None: as the last start
        said.
        """
        directory = Path(path)
        try:
            make_directory(directory)
            reader = LogReader(directory)
            claim, state = claim_log(
                directory, topology, lambda: reader.read_all() if exists(directory) else None,
                lambda: Claim.take(directory, takeover), history,
            )  # fmt: skip
            log = cls(directory, claim, state, segment_bytes)
            with close_on_error(log.close):
                if reader.torn:
                    logger.warning(
                        "transaction log %s of topology %r: the last %d bytes of %s, from byte %d, are a record that a "
                        "crash left unfinished; continuing after batch %d without it",
                        directory, topology, reader.torn, reader.segment and reader.segment.file, reader.offset, state.txid,
                    )  # fmt: skip
                log._begin_segment(reader.segment)
                log.check_owner()
        except (FileExistsError, NotADirectoryError) as error:
            raise LogError(f"cannot keep a transaction log in {directory}: it is not a directory") from error
        except OSError as error:
            raise LogError(
                f"cannot open the transaction log {directory}: {os_error_text(error)}. log_dir must be writable, on a "
                "file system with hard links and locks, and not full"
            ) from error
        return log

    def _append(self, payload: bytes, record: Record, durable: bool, beside: Sequence[LaterWrite]) -> None:
        if durable:  # a record that is not durable is valid only with a later one that is
            self._check_claim()
        try:
            self._write(payload, durable)
        except OSError as error:
            self._fail(error)
        if durable:
            # Check again: a driver that claimed the log since the first check may have read it without this record.
            self._check_claim()

    def close(self) -> None:
        """Release the log and its files; harmless when it is closed already."""
        with self._lock:  # not during an append
            if self._is_ours and self._file is not None:
                self._file.trim()
            self.abandon()

    def abandon(self) -> None:
        """Close the log in a forked child, where the file exists but a thread that was appending does not."""
        self._refuse_all()
        if self._file is not None:
            self._file.close()
        self._claim.release()

    def _begin_segment(self, previous: SegmentName | None) -> None:
        """Begin the next segment with the state and write to it from now on; remove what is older than `previous`."""
        segment = SegmentName(self._segment.epoch, self._segment.seq + 1)
        data = frame(encode(header_of(segment, self.state)), 0)
        temporary = self.path / f"{segment.file}.tmp"
        file = self.file_type(temporary)
        try:
            file.write(data)
            file.sync()
            # It may become the newest segment only now, complete and durable.
            temporary.rename(self.path / segment.file)
            sync_directory(self.path)
        except BaseException:
            file.close()
            temporary.unlink(missing_ok=True)
            raise
        if self._file is not None:
            self._file.trim()
            self._file.close()
        self._file, self._segment, self._size, self._synced = file, segment, len(data), True
        # A state that is larger than a segment must not be written again with every record.
        self._roll_at = len(data) + max(self._segment_bytes, len(data))
        self._sweep(previous or segment)

    def _write(self, payload: bytes, durable: bool) -> None:
        """Write a record of the state; begin the next segment first if it is time."""
        if self._size >= self._roll_at:
            self._begin_segment(self._segment)
        assert self._file is not None, "a segment is begun before a record"
        data = frame(payload, self._size, self._synced)
        self._file.write(data)
        if durable:
            self._file.sync()
        self._size += len(data)
        self._synced = durable

    def _sweep(self, keep: SegmentName) -> None:
        """Remove segments before `keep` that no history needs, claims before this epoch, and what crashes have left."""
        listing, epoch = list_log(self.path), self._segment.epoch
        old = [each for each in listing.segments if each <= keep] or [keep]
        keep = first_kept(old, self.state, lambda name: read_payloads(self.path / name.file, header_only=True))
        names = [each.file for each in listing.segments if each < keep]
        names += [f"epoch-{claim:08d}" for claim in listing.claims if claim < epoch]  # lowest first; see lock
        names += [name for of, name in listing.temporaries if of < epoch]
        for name in names:
            try:
                (self.path / name).unlink(missing_ok=True)
            except OSError as error:
                # Stop here, because a claim must not be removed before a lower one.
                logger.warning("transaction log %s: cannot remove the old file %s: %s", self.path, name, error)
                return

    def _fail(self, error: OSError) -> NoReturn:
        try:
            if self._file is not None:
                self._file.cut(self._size)
        except OSError as second:
            # Harmless: at worst the next driver finds the whole record of a batch whose states are all written.
            logger.warning("transaction log %s: cannot cut the failed record: %s", self.path, second)
        self._check_claim()  # a driver that took over and swept may be the cause; then say so
        raise LogError(
            f"cannot append to the transaction log {self.path}: {os_error_text(error)}. The record is not valid, "
            f"batch {self.state.txid} is the last one committed. Fix the cause (space, permissions, the disk) and "
            "start again: the topology continues from there"
        ) from error
