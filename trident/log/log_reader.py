"""Reading the log from any process, while it is written: only its newest segment, which has the whole state."""

import os
from collections.abc import Iterator
from pathlib import Path

from trident.errors import CorruptLogError, LogError
from trident.log.framing import HEAD_BYTES, Frame, decode, length_of, read_frames
from trident.log.lock import Listing, SegmentName, held_by, list_log, os_error_text
from trident.log.log_interface import TransactionLogReader
from trident.log.log_state import LogState, header_state
from trident.log.records import record_from_data

_TRIES = 20


def exists(path: str | os.PathLike[str]) -> bool:
    try:
        return list_log(Path(path)).newest is not None
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise LogError(f"cannot look for a transaction log in {path}: {os_error_text(error)}") from error


class LogReader(TransactionLogReader):
    """Follows the log in the directory `path`; never writes. For one thread."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.torn = 0
        self._state: LogState | None = None
        self.segment: SegmentName | None = None
        self.offset = 0

    def is_there(self) -> bool:
        return exists(self.path)

    def holder(self) -> str | None:
        claims = self._list().claims
        return held_by(self.path, claims[-1]) if claims else None

    def segments(self) -> list[SegmentName]:
        return self._list().segments

    def read_segment(self, segment: SegmentName, header_only: bool = False) -> Iterator[bytes]:
        return read_payloads(self.path / segment.file, header_only)

    def refresh(self) -> LogState:
        return self._read(trust_last=False)

    def read_all(self) -> LogState:
        """As `refresh`, for the process that has claimed the log: the last record counts, no matter who wrote it."""
        return self._read(trust_last=True)

    def _read(self, trust_last: bool) -> LogState:
        damaged = None
        for _ in range(_TRIES):
            try:
                state = self._try(trust_last)
            except FileNotFoundError:  # a newer segment has replaced the one that was listed
                continue
            except CorruptLogError as error:
                # A file that is written while it is read is not read as of one moment: its end may show a record and,
                # before it, the zeros that were there just now. Real damage is at the same place again.
                if damaged == error.args[:2]:
                    raise
                damaged = error.args[:2]
                continue
            except OSError as error:
                raise LogError(f"cannot read the transaction log {self.path}: {os_error_text(error)}") from error
            if state is not None:
                return state
        raise LogError(
            f"cannot read the transaction log {self.path}: its segments were replaced {_TRIES} times while they were "
            "read. Try again, or with larger segments"
        )

    def _try(self, trust_last: bool) -> LogState | None:
        """Read once; None if the newest segment changed meanwhile."""
        segment = self._list().newest
        if segment is None:
            raise LogError(f"there is no transaction log in {self.path}; a topology's first start makes one")
        file = self.path / segment.file
        offset = self.offset if segment == self.segment else 0
        data, size = _read_from(file, offset)
        if size < offset:  # the writer cut a record that it could not make durable
            offset = 0
            data, _ = _read_from(file, offset)
        frames, torn = read_frames(data, offset, file)
        later = self._list()
        if later.newest != segment:
            return None
        has_records = bool(frames[0 if offset else 1 :])
        if has_records and not trust_last and self._being_replaced(segment, later):
            frames.pop()
        self._fold(segment, file, offset, frames)
        self.torn = torn
        return self._state

    def _being_replaced(self, segment: SegmentName, listing: Listing) -> bool:
        """Whether a later driver has claimed the log and is about to begin its first segment."""
        # The last record may then be that of a writer that was fenced while it wrote, which the new driver will not have in
        # its log; every record before was durable before the claim. If the claimer ends without a segment, the last record is
        # valid.
        return any(held_by(self.path, claim) is not None for claim in listing.claims if claim > segment.epoch)

    def _fold(self, segment: SegmentName, file: Path, offset: int, frames: list[Frame]) -> None:
        if offset == 0:
            header, frames = _first(frames, file), frames[1:]
            self._state = header_state(header.payload, segment, str(file))
            self.segment, self.offset = segment, header.end
        assert self._state is not None, "a segment is read from its header on"
        for each in frames:
            try:
                self._state.apply(record_from_data(decode(each.payload)))
            except ValueError as error:
                raise CorruptLogError(str(file), each.offset, str(error)) from error
            self.offset = each.end

    def _list(self) -> Listing:
        try:
            return list_log(self.path)
        except FileNotFoundError:
            return Listing([], [], [])


def _read_from(file: Path, offset: int) -> tuple[bytes, int]:
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        opened.seek(offset)
        return opened.read(), size


def read_payloads(file: Path, header_only: bool) -> Iterator[bytes]:
    """Yield the payloads of a segment; see `TransactionLogReader.read_segment`."""
    try:
        frames, damage = _read_whole(file, header_only)
        if damage is not None:  # a file that is written is not read as of one moment; see `LogReader._read`
            frames, damage = _read_whole(file, header_only)
    except FileNotFoundError:
        return
    except OSError as error:
        raise LogError(f"cannot read the transaction log {file}: {os_error_text(error)}") from error
    yield from (each.payload for each in frames)
    if damage is not None:
        raise damage
    _first(frames, file)


def _read_whole(file: Path, header_only: bool) -> tuple[list[Frame], CorruptLogError | None]:
    """Return the frames of a segment up to the first that is damaged, and which one that is."""
    with file.open("rb") as opened:
        data = opened.read(HEAD_BYTES)
        data += opened.read(length_of(data) if header_only else -1)
    try:
        return read_frames(data, 0, file)[0], None
    except CorruptLogError as error:
        return read_frames(data[: error.args[1]], 0, file)[0], error


def _first(frames: list[Frame], file: Path) -> Frame:
    if not frames:
        # A segment gets its name only once its header is durable, so this is no crash.
        raise CorruptLogError(str(file), 0, "the header has a wrong checksum")
    return frames[0]
