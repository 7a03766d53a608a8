"""Chooses the bytes of files that make up a batch, the driver's side of spouts of files; and what it asks a kind of file.

A definition is plain data:

``ranges``
    What the batch contains: `[path, start, end, crc]` per file, byte ranges that end at line ends. The checksum is of
    the bytes just before `end`, so that a replay finds a file that was truncated or replaced.
``base``
    The directory that all paths in `ranges` are relative to.
``done``
    Only with `follow`: how far every file was read (see `ranges.py`), packed to 4 to 12 bytes a file.
``at``
    Only without `follow`: path, offset and checksum where the batch ends. Files are read in the order of their paths,
    so this says it all; the definition has the same size however many files there are.
"""

# Paths are text from the system, because a Path per file would cost more than its stat.
# ruff: noqa: PTH119, PTH120

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple

from spouts.files.file_listing import FileSource, Listed
from spouts.files.ranges import FileRange, Piece, Position, Positions, cut, open_error, plain, went_on
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

_log = logging.getLogger(__name__)
_MAX_RANGES = 1000
_COMPARED = 100  # files that were read in another place, the last ones
_KEPT = 100  # ends of batches: more than there are batches in flight


class Rest(Enum):
    """What follows the range that was found."""

    NOTHING = "the file is read to its end"
    MORE = "the batch is full, and the file has more"
    HELD = "an end that may not be whole"
    NO_ROOM = "nothing of the file fits what is left of the batch"


class FileCut(NamedTuple):
    """What a batch takes of a file.

    `range`: None: nothing to read now.
    `rest`, `position`: what follows it, and the position that is then reached.
    `weight`: what it takes of the room of the batch; None: its bytes.
    `is_guess`: whether the range may turn out to end too early, because its file goes on.
    """

    range: FileRange | None
    rest: Rest
    position: Position | None
    weight: int | None = None
    is_guess: bool = False


class FileFormat(ABC):
    """A kind of file. Only the file system is asked, in the driver."""

    @abstractmethod
    def find(self, path: str, before: Position | None, room: int, alone: bool, tail: Tail) -> FileCut:
        """Find what a batch takes of a file from where the batches before have come to.

        `room`: what the batch may still take. Where not the least fits, a batch that is empty (`alone`) takes that.
        `tail`: what is known of its end; it is told how the file is now.
        Raises `ReplayMismatchError`: the file is no longer the one that was read up to `before`.
        Raises `SpoutError`: it cannot be read, or goes on in the middle of a line that was given.
        Raises `OSError`: it cannot be opened.
        """

    @abstractmethod
    def position_at(self, path: str, offset: int) -> Position:
        """Return the position of a file that was read up to `offset`; `OSError` if it cannot be opened."""

    def goes_on(self, path: str, end: int) -> bool:
        """Whether a range up to `end`, which was a guess, has turned out to end too early."""
        return False

    def is_whole(self, path: str) -> bool:
        """Whether a range of the file cannot be cut for tasks."""
        return False

    def size(self, path: str, start: int, end: int) -> int | None:
        """Say about how many bytes a range has in memory; None if that is not known."""
        return end - start


class FileCoordinator(ThrottledCoordinator):
    """Says which byte ranges make up a batch.

    The files with something to read are in a queue, by path. They are listed when the queue is empty (without `follow`:
    once). So a call that returns None has looked at every file, and any other call only at the files of its batch.

    No call waits. An end that may not be whole is left for a later one (see `tails.py`); a definition with such a guess is
    complete only when it was read, and the file has not gone on meanwhile.
    """

    def __init__(self, format_: FileFormat, source: FileSource, max_batch_bytes: int, rule: TailRule) -> None:
        self._format, self._source, self._follow = format_, source, rule.follows
        self._max_batch_bytes = max_batch_bytes
        self._positions = Positions()
        self._queue: deque[str] = deque()
        self._stamps: dict[str, tuple[int, int]] = {}  # of each file when it was last read or compared
        self._rule, self._looked = rule, float("-inf")
        self._tails: dict[str, Tail] = {}  # of the files whose ends are left for later
        self._by_cursor = not self._follow
        self._loaded = False
        self._last: Definition | None = None
        self._ahead = self._defined = 0  # bytes that were listed and are in no batch yet, and those of all batches
        self._up_to: dict[tuple[str, int], int] = {}  # how many that were with each of the last batches

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Fix the ranges of a batch; None if no file has anything more.

        Raises `ReplayMismatchError`: a file that was read in part has changed.
        Raises `SpoutError`: a file or directory cannot be read, a line is too long, or a line goes on that was given.
        """
        try:
            made = self._next(previous)
        except BaseException:
            self._loaded = False  # no definition has what was found before the error, so start again from `previous`
            raise
        if made is not None:
            self._last = made
            self._note_size(made)
        return made

    def _note_size(self, definition: Definition) -> None:
        size = sum(int(end) - int(start) for _, start, end, _ in definition["ranges"])
        # Where nothing that was listed is left, a file may have grown since.
        self._ahead = max(0, self._ahead - size) if self._queue else 0
        self._defined += size
        self._up_to[_end_of(definition)] = self._defined
        if len(self._up_to) > _KEPT:
            del self._up_to[next(iter(self._up_to))]

    def _next(self, previous: Definition | None) -> Definition | None:
        self._rule.steps = STEPS
        if not self._loaded or previous != self._last:
            self._load(previous)
        made = self._define()
        if made is None and self._follow:
            files = self._source.files(self._positions)
            self._forget_removed(files)
            self._enqueue(files)
            made = self._define()
        return made

    def traits(self, definition: Definition) -> BatchTraits:
        return BatchTraits(is_complete=definition.get("read", True), is_guess="guesses" in definition)

    def complete(self, definition: Definition, read: Mapping[str, PartitionRead]) -> Definition:
        """Make sure that no file has gone on where it was taken for whole; `SourceAwayError` if one has: it is cut again."""
        ranges = _ranges_of(definition)
        for at in definition["guesses"]:
            with suppress(FileNotFoundError):  # then it ended there
                if self._format.goes_on(ranges[at].path, ranges[at].end):
                    raise went_on(ranges[at].path, ranges[at].end)
        made = {key: value for key, value in definition.items() if key != "read"}
        self._last = made if self._last == definition else self._last
        return made

    def refresh(self) -> None:
        self._looked = self._rule.now()

    def may_have_more(self) -> bool:
        """Whether a last line that was there is only waited for; says which others are left."""
        due = [one for one in self._tails.values() if not one.is_unfinished and one.changed <= self._looked]
        for path, one in [] if due else self._tails.items():
            if not one.is_told:
                one.is_told = True
                _log.warning("%s is not read to its end: %s. It is read once that is complete", path, _tail_text(one))
        return bool(due)

    def unavailable(self) -> Away | None:
        """Return the end of a file that is waited for, of several the one that is so for the longest time."""
        waited = sorted(self._tails.copy().items(), key=lambda one: one[1].since)
        for path, one in waited[:1]:
            more = f", and of {len(waited) - 1} more" if waited[1:] else ""
            return Away(f"{REST}{path} ({_tail_text(one)}){more}", int(one.since * 1000), is_fault=False)
        return None

    def parts(
        self, attempt: TransactionAttempt, definition: Definition, parallelism: int
    ) -> Sequence[tuple[Piece, ...]]:
        """Cut the ranges to about equal bytes; less than 512 KiB make one part."""
        return cut(_ranges_of(definition), parallelism, self._format.is_whole)

    def size(self, definition: Definition) -> int | None:
        total = 0
        for path, start, end, _ in definition["ranges"]:
            size = self._format.size(os.fsdecode(path), int(start), int(end))
            if size is None:
                return None
            total += size
        return total

    def lag(self, definition: Definition) -> Lag:
        """Say how many bytes the files had beyond this batch when they were listed, of `.gz` files compressed ones."""
        return Lag(self._ahead + self._defined - self._up_to.get(_end_of(definition), 0), "bytes")

    def _load(self, previous: Definition | None) -> None:
        """Continue after `previous`, from that definition and the files alone."""
        self._by_cursor = not self._follow
        cursor = None
        if previous is None:
            self._positions = Positions()
        elif "done" in previous:
            # Also without `follow` from now on, because a single position cannot say what was read out of order.
            self._positions, self._by_cursor = Positions(previous["done"]), False
        else:
            self._positions, cursor = Positions(), previous["at"]
        files = self._source.files(self._positions)
        read = {path: self._positions.get(path) for path in self._positions}
        if cursor is not None:
            read = {os.fsdecode(cursor[0]): Position(cursor[1], cursor[2])}
        self._check_place(files, {path: one for path, one in read.items() if one and not self._source.reaches(path)})
        if cursor is not None:
            self._read_until(files, os.fsdecode(cursor[0]), Position(cursor[1], cursor[2]))
        self._enqueue(files)
        self._loaded, self._last = True, previous

    def _check_place(self, files: Mapping[str, Listed], elsewhere: Mapping[str, Position]) -> None:
        """Raise `ReplayMismatchError` if files are found in another place than they were read in: they would count twice.

        `elsewhere`: files that were read, in places that are not named any more.
        """
        by_name: dict[str, list[str]] = {}
        for path in files if elsewhere else ():
            by_name.setdefault(os.path.basename(path), []).append(path)
        others = 0
        same: list[tuple[str, str]] = []
        for path, position in list(elsewhere.items())[-_COMPARED:]:
            if named := by_name.get(os.path.basename(path)):
                found = [one for one in named if self._is_at(one, files[one].size, position)]
                same += [(path, one) for one in found[:1]]
                others += not found
        if len(same) > others:
            path, now = same[0]
            raise ReplayMismatchError(
                f"{now} is the file that was read as {path}, up to byte {elsewhere[path].offset}, and would be counted again "
                f"({len(same)} such files were found). Name the former path, with a symbolic link there to where the files are "
                "now. If they are other files that only begin alike, give the stream another name"
            )
        if self._by_cursor and (left := [path for cursor in elsewhere for path in files if path < cursor]):
            (cursor,) = elsewhere
            raise ReplayMismatchError(
                f"with follow=False only the file that was read last is known, {cursor}; {left[0]} is before it by its path, "
                f"and would be left out ({len(left)} such files were found). Name the former path beside the new one, and "
                "follow=True; or give the stream another name"
            )

    def _is_at(self, path: str, size: int, position: Position) -> bool:
        """Whether a file is, as far as is known, the one that was read up to a position."""
        with suppress(OSError):
            return size >= position.offset and self._format.position_at(path, position.offset) == position
        return False

    def _read_until(self, files: dict[str, Listed], path: str, position: Position) -> None:
        """Treat all files before `path` as read, and the file itself up to `position`."""
        for earlier in [one for one in files if one < path]:
            size = files.pop(earlier).size
            if not self._by_cursor and size:
                try:
                    self._positions.set(earlier, self._format.position_at(earlier, size))
                except OSError as error:
                    raise open_error(earlier, error, "cannot go on after a batch") from error
        self._positions.set(path, position)

    def _enqueue(self, files: dict[str, Listed]) -> None:
        self._queue.clear()
        self._tails = {path: tail for path, tail in self._tails.items() if path in files}
        ahead = 0
        for path, (size, stamp) in files.items():
            position = self._positions.get(path)
            read = 0 if position is None else position.offset
            if size != read:
                if not self._is_left(path, size, stamp, read):
                    self._queue.append(path)
                ahead += max(0, size - read)
            elif position is not None and self._stamps.get(path) != stamp:
                with suppress(OSError):  # readers may have no access by now
                    self._format.find(path, position, 0, False, Tail(self._rule))  # it raises if it is another one
            self._stamps[path] = stamp
        self._ahead = ahead

    def _is_left(self, path: str, size: int, stamp: tuple[int, int], read: int) -> bool:
        """Whether nothing is to be read of a file yet, as a look at it has shown that was not long ago."""
        tail = self._tails.get(path)
        if tail is None or self._stamps.get(path) != stamp or (size, read) != (tail.size, tail.start):
            return False
        return tail.is_unfinished or not tail.is_quiet

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
        guesses: list[int] = []
        room = self._most(self._max_batch_bytes)
        while self._queue and room > 0 and len(ranges) < _MAX_RANGES:
            path = self._queue[0]
            found = self._find(path, room, alone=not ranges)
            if found is None:
                self._queue.popleft()
                continue
            if found.rest is Rest.NO_ROOM:
                break
            if found.range is not None:
                if found.is_guess:
                    guesses.append(len(ranges))
                ranges.append(found.range)
                room -= found.range.end - found.range.start if found.weight is None else found.weight
            if found.rest is Rest.MORE:
                break
            self._queue.popleft()
        return self._definition(ranges, guesses) if ranges else None

    def _find(self, path: str, room: int, alone: bool) -> FileCut | None:
        before, tail = self._positions.get(path), self._tails.get(path) or Tail(self._rule)
        try:
            found = self._format.find(path, before, room, alone, tail)
        except FileNotFoundError:
            read = "nothing of it was read" if before is None else f"it was read up to byte {before.offset}"
            _log.warning("the file %s was removed: %s", path, read)
            return None
        except OSError as error:
            raise open_error(path, error, "cannot define a batch") from error
        if found.position is not None and found.position != before:
            self._positions.set(path, found.position)
        if found.rest is Rest.HELD:
            self._tails[path] = tail
        else:
            self._tails.pop(path, None)
        return found

    def _definition(self, ranges: list[FileRange], guesses: list[int]) -> Definition:
        folders = {os.path.dirname(one.path) for one in ranges}
        base = (os.path.commonpath(folders) if len(folders) > 1 else folders.pop()).rstrip("/") + "/"
        made: dict[str, Any] = {
            "base": plain(base),
            "ranges": [[plain(one.path[len(base) :]), one.start, one.end, one.crc] for one in ranges],
        }
        if self._by_cursor:
            last = ranges[-1]
            made["at"] = [plain(last.path), last.end, last.crc]
        else:
            made["done"] = self._positions.to_chunks()
        return made | {"guesses": guesses, "read": False} if guesses else made


def _end_of(definition: Definition) -> tuple[str, int]:
    path, _, end, _ = definition["ranges"][-1]
    return os.fsdecode(definition["base"]) + os.fsdecode(path), int(end)


def _ranges_of(definition: Definition) -> list[FileRange]:
    base, guesses = os.fsdecode(definition["base"]), [] if definition.get("read", True) else definition["guesses"]
    return [
        FileRange(base + os.fsdecode(path), start, end, crc, at in guesses)
        for at, (path, start, end, crc) in enumerate(definition["ranges"])
    ]


def _tail_text(tail: Tail) -> str:
    why = "not whole" if tail.is_unfinished else "without a line end"
    return f"{tail.size - tail.start} bytes behind byte {tail.start} are {why}"
