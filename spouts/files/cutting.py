"""Chooses the bytes of files that make up a batch: the driver's side of spouts of files."""

# Paths are text from the system, because a Path per file would cost more than its stat.
# ruff: noqa: PTH116, PTH120

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from spouts.files.file_format import BytesAhead, FileFormat, Rest
from spouts.files.file_listing import FileSource, Listed
from spouts.files.positions import Position, Positions
from spouts.files.ranges import FileRange, Piece, cut, open_error, plain
from trident.spout.interfaces import BatchCoordinator, Definition, Lag, TransactionAttempt

_log = logging.getLogger(__name__)
_MAX_RANGES = 1000
_LOOK_EVERY_S = 0.05

_Seen = tuple[int, int]


@dataclass(frozen=True)
class CuttingClock:
    """Tells the time in seconds since 1970, and sleeps."""

    now: Callable[[], float] = time.time
    pause: Callable[[float], None] = time.sleep


class FileCoordinator(BatchCoordinator):
    """Says which byte ranges make up a batch.

    The files with something to read are in a queue, by path. They are listed when the queue is empty (without `follow`:
    once). So a call that returns None has looked at every file, and any other call only at the files of its batch.
    """

    def __init__(
        self,
        format_: FileFormat,
        source: FileSource,
        max_batch_bytes: int,
        follow: bool,
        tail_idle_s: float,
        clock: CuttingClock,
    ) -> None:
        self._format, self._source, self._follow = format_, source, follow
        self._max_batch_bytes, self._share = max_batch_bytes, 1.0
        self._tail_idle_s, self._clock = tail_idle_s, clock
        self._positions = Positions()
        self._queue: deque[str] = deque()
        self._stamps: dict[str, tuple[int, int]] = {}  # of each file when it was last read or compared
        self._held: dict[str, _Seen] = {}
        self._quiet: dict[str, _Seen] = {}
        self._by_cursor = not self._follow
        self._loaded, self._last = False, None
        self._ahead = BytesAhead()

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Fix the ranges of a batch; None if no file has anything more.

        Raises `ReplayMismatchError`: a file that was read in part has changed.
        Raises `SpoutError`: a file or directory cannot be read, or a line is too long.
        """
        try:
            made = self._next(previous)
        except BaseException:
            self._loaded = False  # no definition has what was found before the error, so start again from `previous`
            raise
        if made is not None:
            self._last = made
            self._ahead.defined(made, is_all=not self._queue)
        return made

    def _next(self, previous: Definition | None) -> Definition | None:
        if not self._loaded or previous != self._last:
            self._load(previous)
        made = self._define()
        if made is None and self._follow:
            self._look_again()
            made = self._define()
            if made is None and self._held:
                self._wait_for_tails()
                self._look_again()
                made = self._define()
        return made

    def parts(
        self, attempt: TransactionAttempt, definition: Definition, parallelism: int
    ) -> Sequence[tuple[Piece, ...]]:
        """Cut the ranges to about equal bytes; less than 512 KiB make one part."""
        base = os.fsdecode(definition["base"])
        ranges = [
            FileRange(base + os.fsdecode(path), start, end, crc) for path, start, end, crc in definition["ranges"]
        ]
        return cut(ranges, parallelism, self._format.is_whole)

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
        return Lag(self._ahead.after(definition), "bytes")

    def throttle(self, share: float) -> None:
        """Take less of the files; a batch still has a line, or a row group."""
        self._share = share

    def success(self, txid: int, definition: Definition) -> None:
        """Nothing is held for a batch, so nothing is dropped."""

    def close(self) -> None:
        """Nothing is open."""

    def _load(self, previous: Definition | None) -> None:
        """Continue after `previous`, from that definition and the files alone."""
        self._held, self._quiet = {}, {}
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
        if cursor is not None:
            self._read_until(files, os.fsdecode(cursor[0]), Position(cursor[1], cursor[2]))
        self._enqueue(files)
        self._loaded, self._last = True, previous

    def _read_until(self, files: dict[str, Listed], path: str, position: Position) -> None:
        """Treat all files before `path` as read, and the file itself up to `position`."""
        for earlier in [one for one in files if one < path]:
            size = files.pop(earlier).size
            if not self._by_cursor and size:
                self._positions.set(earlier, self._format.position_at(earlier, size))
        self._positions.set(path, position)

    def _look_again(self) -> None:
        files = self._source.files(self._positions)
        self._forget_removed(files)
        self._held = {}
        self._enqueue(files)

    def _enqueue(self, files: dict[str, Listed]) -> None:
        self._queue.clear()
        ahead = 0
        for path, (size, stamp) in files.items():
            position = self._positions.get(path)
            read = 0 if position is None else position.offset
            if size != read:
                self._queue.append(path)
                ahead += max(0, size - read)
            elif position is not None and self._stamps.get(path) != stamp:
                with suppress(OSError):  # readers may have no access by now
                    self._format.check_same(path, size, position)
            self._stamps[path] = stamp
        self._ahead.listed(ahead)

    def _forget_removed(self, files: dict[str, Listed]) -> None:
        # A directory that lost all its files at once may be a volume that is not mounted; its files may come back.
        alive = {os.path.dirname(path) for path in files}
        gone = [path for path in self._positions if path not in files and os.path.dirname(path) in alive]
        for path in gone:
            if not os.path.lexists(path):
                self._positions.forget(path)
                self._quiet.pop(path, None)
                self._stamps.pop(path, None)

    def _define(self) -> Definition | None:
        ranges: list[FileRange] = []
        room = max(1, int(self._max_batch_bytes * self._share))
        while self._queue and room > 0 and len(ranges) < _MAX_RANGES:
            path = self._queue[0]
            piece = self._find(path, room, alone=not ranges)
            if piece is None:
                self._queue.popleft()
                continue
            range_, rest, weight = piece
            if rest is Rest.NO_ROOM:
                break
            if range_ is not None:
                ranges.append(range_)
                room -= weight
            if rest is Rest.MORE:
                break
            self._queue.popleft()
        return self._definition(ranges) if ranges else None

    def _find(self, path: str, room: int, alone: bool) -> tuple[FileRange | None, Rest, int] | None:
        seen: list[_Seen] = []

        def is_final(status: os.stat_result) -> bool:
            seen.append((status.st_size, status.st_mtime_ns))
            old = self._clock.now() - status.st_mtime >= self._tail_idle_s
            return old or not self._follow or self._quiet.get(path) == seen[-1]

        before = self._positions.get(path)
        try:
            found = self._format.find(path, before, room, alone, is_final)
        except FileNotFoundError:
            read = "nothing of it was read" if before is None else f"it was read up to byte {before.offset}"
            _log.warning("the file %s was removed: %s", path, read)
            return None
        except OSError as error:
            raise open_error(path, error, "cannot define a batch") from error
        if found.position is not None and found.position != before:
            self._positions.set(path, found.position)
        if found.rest is Rest.HELD:
            self._held[path] = seen[-1]
        taken = 0 if found.range is None else found.range.end - found.range.start
        return found.range, found.rest, taken if found.weight is None else found.weight

    def _definition(self, ranges: list[FileRange]) -> Definition:
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
            made["done"] = self._positions.packed()
        return made

    def _wait_for_tails(self) -> None:
        """Wait until no held file has changed for `tail_idle_s`, or one of them changes, because then there is more to read."""
        now = self._clock.now()
        ages = [now - mtime_ns / 1e9 for _, mtime_ns in self._held.values()]
        # A time of change in the future comes from another clock; then the whole idle time is waited for.
        left = max(min(self._tail_idle_s, self._tail_idle_s - age) for age in ages)
        while left > 0:
            step = min(left, _LOOK_EVERY_S)
            self._clock.pause(step)
            left -= step
            if any(_seen_now(path) != seen for path, seen in self._held.items()):
                return
        self._quiet.update(self._held)


def _seen_now(path: str) -> _Seen | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
