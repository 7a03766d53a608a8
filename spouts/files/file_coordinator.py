"""Chooses the bytes of files that make up a batch, the driver's side of spouts of files; and what it asks a kind of file.

A definition is plain data. `ranges`: `[path, start, end, crc]` per file, byte ranges that end at line ends; the checksum is of
the bytes just before `end`, so that a replay finds a file that was truncated or replaced. `base`: the directory that all paths
in `ranges` are relative to. `bytes`: how many this batch and all before it have.

With `follow`, `done` says how far every file was read (see `ranges.py`), packed to 4 to 12 bytes a file. Without it `at` is
path, offset and checksum where the batch ends: files are read in the order of their paths, so this says it all.

Only if the batch may still change: `guesses`, the numbers of the ranges that may end too early, and `read`, False until then.
"""

# Paths are text from the system, because a Path per file would cost more than its stat.
# ruff: noqa: PTH119, PTH120

import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from spouts.files.file_listing import FileSource, Listed
from spouts.files.ranges import UNREAD, FileRange, Piece, Position, Positions, cut, open_error, opened, plain, went_on
from spouts.files.tails import STEPS, Tail, TailRule
from trident.errors import ReplayMismatchError
from trident.spout.interfaces import (
    REST,
    Away,
    BatchTraits,
    Definition,
    Lag,
    PartitionRead,
    ThrottledCoordinator,
    TransactionAttempt,
)

T = TypeVar("T")
_log = logging.getLogger(__name__)
_MAX_RANGES = 1000
_COMPARED = 100  # files that were read in another place, the last ones


class Look(NamedTuple):
    """A file that is open, as it is now, and what a batch may take of it."""

    path: str
    file: int
    size: int
    before: Position  # how far the batches before have read it
    room: int  # what the batch may still take
    alone: bool  # the batch is empty: it takes the least there is, even if that does not fit
    tail: Tail


class Rest(Enum):
    """What follows the range that was found."""

    NOTHING = "the file is read to its end"
    MORE = "the batch is full, and the file has more"
    HELD = "an end that may not be whole"


class FileCut(NamedTuple):
    """What a batch takes of a file, and what follows that."""

    range: FileRange | None  # an empty one only says how far the file is done; None: not even that
    rest: Rest
    weight: int | None = None  # what it takes of the room of the batch; None: its bytes


class FileFormat(ABC):
    """A kind of file. Only the file system is asked, in the driver."""

    @abstractmethod
    def find(self, look: Look) -> FileCut:
        """Find what a batch takes of a file; `ReplayMismatchError` if it is not the one that was read before."""

    @abstractmethod
    def position_at(self, path: str, file: int, offset: int) -> Position:
        """Return the position of an open file that was read up to `offset`."""

    def goes_on(self, path: str, file: int, end: int) -> bool:
        """Whether a range up to `end`, which was a guess, has turned out to end too early."""
        return False

    def is_whole(self, path: str) -> bool:
        """Whether a range of the file cannot be cut for tasks."""
        return path.endswith(".gz")


class FileCoordinator(ThrottledCoordinator):
    """Says which byte ranges make up a batch. No call waits.

    A file is one of these: in the queue, because something is to be read of it; left, because its end is held or waited for
    (it has a tail, see `tails.py`); done, until it changes; or to be compared, because it was changed and has its size. They
    are listed when the queue is empty (without `follow`: once), so a call that returns None has looked at every file.
    """

    def __init__(self, format_: FileFormat, source: FileSource, max_batch_bytes: int, rule: TailRule) -> None:
        self._format, self._source, self._rule = format_, source, rule
        self._max_batch_bytes = max_batch_bytes
        self._positions, self._queue = Positions(), deque[str]()
        self._stamps: dict[str, tuple[int, int]] = {}  # of each file when it was last read or compared
        self._tails: dict[str, Tail] = {}  # of the files whose ends are left for later
        self._looked = float("-inf")
        self._by_cursor = self._loaded = False
        self._last: Definition | None = None
        self._total = 0  # bytes of all batches, and those that were listed and are in none yet

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Fix the ranges of a batch; None if no file has anything more, `SpoutError` if one is not what it was."""
        self._rule.steps = STEPS
        try:
            if not self._loaded or previous != self._last:
                self._load(previous)
            made = self._define()
            if made is None and self._rule.follows:
                files = self._source.files(self._positions)
                self._forget_removed(files)
                self._enqueue(files)
                made = self._define()
        except BaseException:
            self._loaded = False  # no definition has what was found before the error, so start again from `previous`
            raise
        self._last = made or self._last
        return made

    def traits(self, definition: Definition) -> BatchTraits:
        return BatchTraits(is_complete=definition.get("read", True), is_guess="guesses" in definition)

    def complete(self, definition: Definition, read: Mapping[str, PartitionRead]) -> Definition:
        """Make sure that no file has gone on where it was taken for whole; `SourceAwayError` if one has: it is cut again."""
        for path, _, end, _, is_guess in _ranges_of(definition):
            with suppress(FileNotFoundError):  # then it ended there
                if is_guess and _ask(self._format.goes_on, path, end):
                    raise went_on(path, end)
        made = {key: value for key, value in definition.items() if key != "read"}
        self._last = made if self._last == definition else self._last
        return made

    def refresh(self) -> None:
        self._looked = self._rule.now()

    def may_have_more(self) -> bool:
        """Whether a last line that was there is only waited for; says which others are left."""
        due = [one for one in self._tails.values() if not one.is_held and one.changed <= self._looked]
        for path, one in [] if due else self._tails.items():
            if not one.is_told:
                _log.warning("%s is not read to its end: %s. It is read once that is complete", path, one)
            one.is_told = True
        return bool(due)

    def unavailable(self) -> Away | None:
        """Return the end of a file that is waited for, of several the one that is so for the longest time."""
        if not (waited := self._tails.copy()):
            return None
        path, one = min(waited.items(), key=lambda each: each[1].since)
        more = f", and of {len(waited) - 1} more" if len(waited) > 1 else ""
        return Away(f"{REST}{path} ({one}){more}", int(one.since * 1000), is_fault=False)

    def parts(
        self, attempt: TransactionAttempt, definition: Definition, parallelism: int
    ) -> Sequence[tuple[Piece, ...]]:
        return cut(_ranges_of(definition), parallelism, self._format.is_whole)

    def size(self, definition: Definition) -> int | None:
        ranges = _ranges_of(definition)
        # What compressed ones unpack to is not known.
        return None if any(one.path.endswith(".gz") for one in ranges) else sum(one.end - one.start for one in ranges)

    def lag(self, definition: Definition) -> Lag:
        return Lag(max(0, self._total - definition.get("bytes", 0)), "bytes")

    def _load(self, previous: Definition | None) -> None:
        """Continue after `previous`, from that definition and the files alone."""
        self._last, cursor = previous, None
        self._positions = Positions((previous or {}).get("done", ()))
        # Also without `follow` from now on, because a single position cannot say what was read out of order.
        self._by_cursor = not self._rule.follows and "done" not in (previous or {})
        if previous is not None and "at" in previous:
            cursor = os.fsdecode(previous["at"][0])
            self._positions.set(cursor, Position(*previous["at"][1:]))
        files = self._source.files(self._positions)
        self._check_place(files, [path for path in self._positions if not self._source.reaches(path)])
        if cursor is not None:
            self._read_until(files, cursor)
        self._enqueue(files)
        self._loaded = True

    def _check_place(self, files: Mapping[str, Listed], elsewhere: Sequence[str]) -> None:
        """Raise `ReplayMismatchError` if files that were read `elsewhere` are found here: they would count twice."""
        by_name: dict[str, list[str]] = {}
        for path in files if elsewhere else ():
            by_name.setdefault(os.path.basename(path), []).append(path)
        named = [(path, by_name.get(os.path.basename(path))) for path in elsewhere[-_COMPARED:]]
        found = [
            (path, [one for one in now if self._is_same(one, files[one].size, path)]) for path, now in named if now
        ]
        same = [(path, now[0]) for path, now in found if now]
        if len(same) > len(found) - len(same):
            path, now = same[0]
            raise ReplayMismatchError(
                f"{now} is the file that was read as {path}, up to byte {self._positions[path].offset}, and would be counted "
                f"again ({len(same)} such files were found). Name the former path, with a symbolic link there to where the "
                "files are now. If they are other files that only begin alike, give the stream another name"
            )
        if self._by_cursor and (left := [path for cursor in elsewhere for path in files if path < cursor]):
            raise ReplayMismatchError(
                f"with follow=False only the file that was read last is known, {elsewhere[0]}; {left[0]} is before it by its "
                f"path, and would be left out ({len(left)} such files were found). Name the former path beside the new one, "
                "and follow=True; or give the stream another name"
            )

    def _is_same(self, path: str, size: int, read: str) -> bool:
        """Whether a file is, as far as is known, the one that was read under another path."""
        with suppress(OSError):
            position = self._positions[read]
            return size >= position.offset and _ask(self._format.position_at, path, position.offset) == position
        return False

    def _read_until(self, files: dict[str, Listed], cursor: str) -> None:
        """Treat all files before the one that was read last as read."""
        for earlier in [one for one in files if one < cursor]:
            size = files.pop(earlier).size
            if not self._by_cursor and size:
                try:
                    self._positions.set(earlier, _ask(self._format.position_at, earlier, size))
                except OSError as error:
                    raise open_error(earlier, error, "cannot go on after a batch") from error

    def _enqueue(self, files: dict[str, Listed]) -> None:
        self._queue.clear()
        self._tails = {path: tail for path, tail in self._tails.items() if path in files}
        self._total = (self._last or {}).get("bytes", 0)
        for path, (size, stamp) in files.items():
            read = self._positions.get(path, UNREAD).offset
            if size != read:
                if not self._is_left(path, size, stamp, read):
                    self._queue.append(path)
                self._total += max(0, size - read)
            elif read and self._stamps.get(path) != stamp:
                with suppress(OSError):  # readers may have no access by now; it raises if it is another one
                    self._look(path, self._positions[path], 0, False, Tail(self._rule))
            self._stamps[path] = stamp

    def _is_left(self, path: str, size: int, stamp: tuple[int, int], read: int) -> bool:
        """Whether nothing is to be read of a file yet, as a look at it has shown that was not long ago."""
        tail = self._tails.get(path)
        if tail is None or self._stamps.get(path) != stamp or (size, read) != (tail.size, tail.start):
            return False
        return tail.is_held or not tail.is_quiet

    def _forget_removed(self, files: dict[str, Listed]) -> None:
        # A directory that lost all its files at once may be a volume that is not mounted; its files may come back.
        alive = {os.path.dirname(path) for path in files}
        gone = [path for path in self._positions if path not in files and os.path.dirname(path) in alive]
        for path in gone:
            if not os.path.lexists(path):
                self._positions.forget(path)
                self._stamps.pop(path, None)

    def _define(self) -> Definition | None:
        ranges: list[FileRange] = []
        room = self._most(self._max_batch_bytes)
        while self._queue and room > 0 and len(ranges) < _MAX_RANGES:
            found = self._find(self._queue[0], room, alone=not ranges)
            if found.range is not None and found.range.end > found.range.start:
                ranges.append(found.range)
                room -= found.range.end - found.range.start if found.weight is None else found.weight
            if found.rest is Rest.MORE:
                break
            self._queue.popleft()
        return self._definition(ranges) if ranges else None

    def _find(self, path: str, room: int, alone: bool) -> FileCut:
        before, tail = self._positions.get(path, UNREAD), self._tails.get(path) or Tail(self._rule)
        try:
            found = self._look(path, before, room, alone, tail)
        except FileNotFoundError:
            read = f"it was read up to byte {before.offset}" if before.offset else "nothing of it was read"
            _log.warning("the file %s was removed: %s", path, read)
            return FileCut(None, Rest.NOTHING)
        except OSError as error:
            raise open_error(path, error, "cannot define a batch") from error
        if found.range is not None and found.range[2:4] != before:
            self._positions.set(path, Position(*found.range[2:4]))
        if found.rest is Rest.HELD:
            self._tails[path] = tail
        else:
            self._tails.pop(path, None)
        return found

    def _look(self, path: str, before: Position, room: int, alone: bool, tail: Tail) -> FileCut:
        with opened(path) as file:
            status = os.fstat(file)
            tail.sees(status)
            return self._format.find(Look(path, file, status.st_size, before, room, alone, tail))

    def _definition(self, ranges: list[FileRange]) -> Definition:
        folders = {os.path.dirname(one.path) for one in ranges}
        base = (os.path.commonpath(folders) if len(folders) > 1 else folders.pop()).rstrip("/") + "/"
        size = (self._last or {}).get("bytes", 0) + sum(one.end - one.start for one in ranges)
        self._total = max(self._total, size) if self._queue else size  # where the queue is empty, a file may have grown
        made: dict[str, Any] = {
            "base": plain(base),
            "ranges": [[plain(one.path[len(base) :]), one.start, one.end, one.crc] for one in ranges],
            "bytes": size,
        }
        if self._by_cursor:
            made["at"] = [plain(ranges[-1].path), ranges[-1].end, ranges[-1].crc]
        else:
            made["done"] = self._positions.to_chunks()
        guesses = [at for at, one in enumerate(ranges) if one.is_guess]
        return made | {"guesses": guesses, "read": False} if guesses else made


def _ask(question: Callable[[str, int, int], T], path: str, offset: int) -> T:
    with opened(path) as file:
        return question(path, file, offset)


def _ranges_of(definition: Definition) -> list[FileRange]:
    base, guesses = os.fsdecode(definition["base"]), [] if definition.get("read", True) else definition["guesses"]
    return [
        FileRange(base + os.fsdecode(path), start, end, crc, at in guesses)
        for at, (path, start, end, crc) in enumerate(definition["ranges"])
    ]
