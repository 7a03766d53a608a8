"""Spouts that are wrong in one thing each: `LineSpout` with one method of its coordinator, emitter or description changed."""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from tests.testing.spout.line_spout import LIMIT, LineCoordinator, LineEmitter, LineSource, LineSpout
from trident.errors import SpoutError
from trident.spout import Definition, Lag, SpoutType, TransactionAttempt
from trident.testing import SpoutPromise

__all__ = ["WRONG", "source_of"]

OPAQUE = SpoutType.OPAQUE
TRANSACTIONAL = SpoutType.TRANSACTIONAL
WRONG: dict[type, tuple[SpoutPromise, SpoutType]] = {}


def breaks(promise: SpoutPromise, spout_type: SpoutType = TRANSACTIONAL) -> Any:
    """Enter a class among the wrong ones, under the promise that it breaks."""

    def entered(wrong: type) -> type:
        WRONG[wrong] = promise, spout_type
        return wrong

    return entered


def source_of(wrong: type) -> type[LineSource]:
    """Return the source whose spout has a wrong coordinator or emitter, or is the wrong description."""
    parts: dict[str, Any] = {}
    if issubclass(wrong, LineCoordinator):
        parts["coordinator"] = wrong
    if issubclass(wrong, LineEmitter):
        parts["emitter"] = wrong
    made = wrong if issubclass(wrong, LineSpout) else type("LineSpout", (LineSpout,), parts)
    promise, spout_type = WRONG[wrong]
    options = {
        "made": made,
        "spout_type": spout_type,
        "durable": promise is SpoutPromise.ELSEWHERE,
        "at_least_once": True,
    }
    return type("WrongSource", (LineSource,), options)


# ---- rows ----------------------------------------------------------------------------------------------------------------


@breaks(SpoutPromise.FIELDS)
class NamesAnotherColumn(LineEmitter):
    def table(self, rows: list[list[Any]]) -> pa.Table:
        return super().table(rows).rename_columns(["number", "name"])


@breaks(SpoutPromise.FIELDS)
class EmitsAColumnTooMany(LineEmitter):
    def table(self, rows: list[list[Any]]) -> pa.Table:
        table = super().table(rows)
        return table.append_column("more", table.column(0))


@breaks(SpoutPromise.VALUES)
class ChangesText(LineEmitter):
    def table(self, rows: list[list[Any]]) -> pa.Table:
        return super().table([[number, name.lower()] for number, name in rows])


@breaks(SpoutPromise.NO_GAP)
class SkipsALineBetweenBatches(LineCoordinator):
    def start(self, txid: int, previous: Definition | None) -> dict[str, int]:
        return {name: end + 1 for name, end in super().start(txid, previous).items()}


@breaks(SpoutPromise.NO_GAP)
class DropsTheLastTable(LineEmitter):
    def emit(self, part: Any) -> Iterator[pa.Table]:
        tables = list(super().emit(part))
        yield from tables[: max(1, len(tables) - 1)]


@breaks(SpoutPromise.NO_OVERLAP)
class BeginsWithTheLastLine(LineCoordinator):
    def start(self, txid: int, previous: Definition | None) -> dict[str, int]:
        known = {name: len(lines) for name, lines in self.lines().items()}
        return {name: end - (end < known[name]) for name, end in super().start(txid, previous).items()}


@breaks(SpoutPromise.ORDER)
class EmitsBackwards(LineEmitter):
    def table(self, rows: list[list[Any]]) -> pa.Table:
        return super().table(rows[::-1])


@breaks(SpoutPromise.ORDER)
class CutsBackwards(LineCoordinator):
    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        return super().parts(attempt, definition, parallelism)[::-1]


# ---- batches -------------------------------------------------------------------------------------------------------------


@breaks(SpoutPromise.LIMIT)
class TakesAll(LineCoordinator):
    def limit(self) -> int:
        return 10**6 if self.share == 1.0 else super().limit()


@breaks(SpoutPromise.LIMIT)
class LimitsEachFile(LineCoordinator):
    """Counts the lines of a file alone."""

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        if self.share < 1.0:
            return super().initialize_transaction(txid, previous)
        at, ranges = self.start(txid, previous), []
        for name, lines in self.lines().items():
            one = _only(name, lines, at.get(name, 0), self.limit())
            ranges += one
            at.update({name: end for name, _, end, _ in one})
        return {"ranges": ranges, "at": at, "bytes": 20 * len(ranges)} if ranges else None


def _only(name: str, lines: list[str], begin: int, limit: int) -> list[list[Any]]:
    end = min(len(lines), begin + limit)
    return [[name, begin, end, zlib.crc32(lines[end - 1].encode())]] if end > begin else []


@breaks(SpoutPromise.THROTTLE)
class IgnoresTheThrottle(LineCoordinator):
    def throttle(self, share: float) -> None: ...


@breaks(SpoutPromise.THROTTLE)
class IsThrottledToNothing(LineCoordinator):
    def limit(self) -> int:
        return int(LIMIT * self.share)


@breaks(SpoutPromise.THROTTLE)
class StaysThrottled(LineCoordinator):
    def throttle(self, share: float) -> None:
        self.share = min(self.share, share)


@breaks(SpoutPromise.IDLE)
class DefinesEmptyBatches(LineCoordinator):
    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        found = super().initialize_transaction(txid, previous)
        return found if found or not previous else {"ranges": [], "at": previous["at"], "bytes": 0}


@breaks(SpoutPromise.IDLE)
class WaitsForMore(LineCoordinator):
    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        found = super().initialize_transaction(txid, previous)
        if found is None:
            time.sleep(1.2 * LineSource.idle_s)  # what is tested is a spout that blocks the thread of the batches
        return found


@breaks(SpoutPromise.GROWTH)
class ListsOnce(LineCoordinator):
    def lines(self) -> dict[str, list[str]]:
        return self.known or super().lines()


@breaks(SpoutPromise.GROWTH)
class EndsForGood(LineCoordinator):
    ended = False

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        found = None if self.ended else super().initialize_transaction(txid, previous)
        self.ended = found is None
        return found


# ---- definitions ---------------------------------------------------------------------------------------------------------


@breaks(SpoutPromise.PLAIN)
class DefinesWithTuples(LineCoordinator):
    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        found = super().initialize_transaction(txid, previous)
        return found and {**found, "ranges": [tuple(one) for one in found["ranges"]]}


@breaks(SpoutPromise.PLAIN)
class DefinesWithASet(LineCoordinator):
    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        found = super().initialize_transaction(txid, previous)
        return found and {**found, "files": {name for name, *_ in found["ranges"]}}


@breaks(SpoutPromise.PLAIN)
class ChangesThePreviousDefinition(LineCoordinator):
    def start(self, txid: int, previous: Definition | None) -> dict[str, int]:
        return previous["at"] if previous else {}


@breaks(SpoutPromise.SMALL)
class KeepsAllRanges(LineCoordinator):
    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        found = super().initialize_transaction(txid, previous)
        earlier = previous["earlier"] + previous["ranges"] if previous else []
        return found and {**found, "earlier": earlier}


@breaks(SpoutPromise.REPLAY)
class ReadsToTheEndOfToday(LineCoordinator):
    """Leaves the end of a batch open where it is the end of the file."""

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        parts = super().parts(attempt, definition, parallelism)
        tails = definition["tails"] if self.folder.is_dir() else []
        return [
            (folder, name, start, len(self.lines().get(name, ())) if end == last and name in tails else end, last, crc)
            for folder, name, start, end, last, crc in parts
        ]

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        found = super().initialize_transaction(txid, previous)
        return found and {**found, "tails": [name for name, end in found["at"].items() if end == len(self.known[name])]}


@breaks(SpoutPromise.REPLAY)
class ForgetsWhatItHasRead(LineEmitter):
    """Consumes its source."""

    read: ClassVar[set[Any]] = set()

    def emit(self, part: Any) -> Iterator[pa.Table]:
        for table in super().emit(part):
            key = (part[0], part[1], str(table.to_pylist()))
            if key not in self.read:
                self.read.add(key)
                yield table


@breaks(SpoutPromise.CUTS)
class LosesTheRemainder(LineCoordinator):
    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        rows = sum(end - start for _, start, end, _ in definition["ranges"])
        step = max(1, rows // parallelism)
        return [
            (self.folder, name, at, at + step, end, crc)
            for name, start, end, crc in definition["ranges"]
            for at in (range(start, end - step + 1, step) if parallelism > 1 else [start])
            if at + step <= end
        ] if parallelism > 1 else super().parts(attempt, definition, 1)  # fmt: skip


_KEPT: dict[Path, list[str]] = {}


class KeepingCoordinator(LineCoordinator):
    def lines(self) -> dict[str, list[str]]:
        found = super().lines()
        _KEPT.update({self.folder / name: lines for name, lines in found.items()})
        return found


class KeptEmitter(LineEmitter):
    def lines(self, path: Path) -> list[str]:
        return _KEPT.get(path, [])


@breaks(SpoutPromise.ELSEWHERE)
class KeepsTheLinesInTheProcess(LineSpout):
    coordinator = KeepingCoordinator
    emitter = KeptEmitter


@breaks(SpoutPromise.ELSEWHERE)
class RemembersItsParts(LineCoordinator):
    """Cuts only what it has defined itself."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.own: set[int] = set()

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        self.own.add(txid)
        return super().initialize_transaction(txid, previous)

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        return super().parts(attempt, definition, parallelism) if attempt.txid in self.own else []


@breaks(SpoutPromise.AHEAD)
class CountsWhatIsCommitted(LineCoordinator):
    committed: Definition | None = None

    def start(self, txid: int, previous: Definition | None) -> dict[str, int]:
        return super().start(txid, self.committed or previous)

    def success(self, txid: int, definition: Definition) -> None:
        self.committed = definition


@breaks(SpoutPromise.AHEAD)
class DropsAllAtSuccess(LineCoordinator):
    """Keeps what it has defined until any batch is committed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.dropped: set[int] = set()
        self.waiting: set[int] = set()

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        found = super().initialize_transaction(txid, previous)
        if found:
            self.waiting.add(txid)
            self.dropped.discard(txid)
        return found

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        return [] if attempt.txid in self.dropped else super().parts(attempt, definition, parallelism)

    def success(self, txid: int, definition: Definition) -> None:
        self.dropped |= self.waiting - {txid}
        self.waiting.clear()


class KeepsItsPlace(LineCoordinator):
    """Goes on where it was, whatever it is asked."""

    place: dict[str, int] | None = None

    def start(self, txid: int, previous: Definition | None) -> dict[str, int]:
        return dict(self.place) if self.place is not None else super().start(txid, previous)

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        found = super().initialize_transaction(txid, previous)
        if found:
            self.place = dict(found["at"])
        return found


breaks(SpoutPromise.RETRY)(KeepsItsPlace)


@breaks(SpoutPromise.RETRY, OPAQUE)
class KeepsItsPlaceOpaquely(KeepsItsPlace): ...


@breaks(SpoutPromise.RESTART)
class RemembersTheEndOfBatches(LineCoordinator):
    """Knows by heart where each batch ended, and looks at no definition."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ends: dict[int, dict[str, int]] = {}

    def start(self, txid: int, previous: Definition | None) -> dict[str, int]:
        return dict(self.ends.get(txid - 1, {}))

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        found = super().initialize_transaction(txid, previous)
        if found:
            self.ends[txid] = dict(found["at"])
        return found


@breaks(SpoutPromise.RESTART)
class SavesItsPlaceWhenItIsClosed(LineCoordinator):
    """Goes on where a driver that was closed has noted that it was."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.note, self.ends = folder.parent / "note", dict[int, dict[str, int]]()

    def start(self, txid: int, previous: Definition | None) -> dict[str, int]:
        noted = json.loads(self.note.read_text()) if self.note.exists() else {}
        return dict(self.ends.get(txid - 1, noted))

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        found = super().initialize_transaction(txid, previous)
        if found:
            self.ends[txid] = dict(found["at"])
        return found

    def close(self) -> None:
        if self.ends:
            self.note.write_text(json.dumps(self.ends[max(self.ends)]))


@breaks(SpoutPromise.RESTART, OPAQUE)
class BeginsAgainAtTheEnd(LineCoordinator):
    """Reads what comes after the start of the driver, as a consumer does that begins at the latest record."""

    begun: dict[str, int] | None = None

    def start(self, txid: int, previous: Definition | None) -> dict[str, int]:
        if self.begun is None:
            self.begun = {name: len(lines) for name, lines in self.lines().items()} if previous else {}
        return {**self.begun, **(previous["at"] if previous and self.begun == {} else {})} if previous else {}


# ---- partitions ----------------------------------------------------------------------------------------------------------


@breaks(SpoutPromise.NEW_PARTITIONS)
class KnowsTheFilesOfTheBeginning(LineCoordinator):
    def lines(self) -> dict[str, list[str]]:
        return {name: lines for name, lines in super().lines().items() if int(name) < LineSource.partitions}


@breaks(SpoutPromise.NEW_PARTITIONS, OPAQUE)
class BeginsNewFilesAtTheirEnd(LineCoordinator):
    def start(self, txid: int, previous: Definition | None) -> dict[str, int]:
        known = super().start(txid, previous)
        new = {name: len(lines) for name, lines in self.lines().items() if int(name) >= LineSource.partitions}
        return {**new, **known}


@breaks(SpoutPromise.LOST_PARTITIONS)
class SkipsWhatIsLost(LineEmitter):
    def emit(self, part: Any) -> Iterator[pa.Table]:
        if part[0].is_dir() and not (part[0] / part[1]).exists():
            return
        yield from super().emit(part)


@breaks(SpoutPromise.LOST_PARTITIONS, OPAQUE)
class ForgetsTheLost(LineCoordinator):
    """Knows only the places of the files that are there."""

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        found = super().initialize_transaction(txid, previous)
        return found and {**found, "at": {name: end for name, end in found["at"].items() if name in self.known}}


@breaks(SpoutPromise.LOST_PARTITIONS, OPAQUE)
class StopsWithTheLost(LineCoordinator):
    """Waits for a file that is lost, although the others could be read."""

    def lines(self) -> dict[str, list[str]]:
        before, found = set(self.known), super().lines()
        if before - set(found):
            self.known = {name: [] for name in before}
            raise SpoutError(f"list {self.folder}: {sorted(before - set(found))} are gone; bring them back")
        return found


# ---- what is around the rows -----------------------------------------------------------------------------------------------


@breaks(SpoutPromise.SHIPPED)
class HoldsALock(LineSpout):
    def __init__(self, folder: Path, spout_type: SpoutType) -> None:
        super().__init__(folder, spout_type)
        self.lock = threading.Lock()


@breaks(SpoutPromise.SHIPPED)
class OpensAFile(LineSpout):
    """Opens its folder when it is described."""

    opened: ClassVar[list[Any]] = []

    def __init__(self, folder: Path, spout_type: SpoutType) -> None:
        super().__init__(folder, spout_type)
        self.opened.append((folder.parent / "opened").open("w"))


@breaks(SpoutPromise.SHIPPED)
class SendsAThread(LineEmitter):
    def __init__(self) -> None:
        self.lock = threading.Lock()


@breaks(SpoutPromise.SIZE)
class AsksForTheSize(LineCoordinator):
    def size(self, definition: Definition) -> int | None:
        return sum(len(lines) for lines in self.lines().values()) * 10


@breaks(SpoutPromise.SIZE)
class CountsNothing(LineCoordinator):
    def size(self, definition: Definition) -> int | None:
        return 0


@breaks(SpoutPromise.LAG)
class AsksForTheLag(LineCoordinator):
    def lag(self, definition: Definition) -> Lag | None:
        self.lines()
        return super().lag(definition)


@breaks(SpoutPromise.LAG)
class IsBehindForEver(LineCoordinator):
    def lag(self, definition: Definition) -> Lag | None:
        return Lag(sum(len(lines) for lines in self.known.values()), "lines")


class _Opened:
    files: ClassVar[list[Any]] = []


@breaks(SpoutPromise.CLOSE)
class LeavesFilesOpen(LineEmitter):
    def lines(self, path: Path) -> list[str]:
        if path.exists():
            _Opened.files.append(path.open())
        return super().lines(path)


@breaks(SpoutPromise.CLOSE)
class LeavesAThread(LineCoordinator):
    end: ClassVar[threading.Event] = threading.Event()

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        threading.Thread(target=self.end.wait, args=(20.0,), daemon=True).start()


@breaks(SpoutPromise.ERRORS)
class RaisesWhatItGets(LineEmitter):
    def lines(self, path: Path) -> list[str]:
        return path.read_text().splitlines()


@breaks(SpoutPromise.ERRORS)
class TakesAnOutageForAnEnd(LineEmitter):
    def emit(self, part: Any) -> Iterator[pa.Table]:
        return super().emit(part) if part[0].is_dir() else iter(())


@breaks(SpoutPromise.ERRORS)
class DefinesWithoutASource(LineCoordinator):
    def lines(self) -> dict[str, list[str]]:
        self.known = {path.name: path.read_text().splitlines() for path in sorted(self.folder.iterdir())}
        return self.known


@breaks(SpoutPromise.CHANGES)
class ChecksNothing(LineEmitter):
    def check(self, path: Path, lines: list[str], last: int, crc: int) -> None: ...


@breaks(SpoutPromise.CHANGES)
class SaysItInItsOwnWords(LineEmitter):
    def check(self, path: Path, lines: list[str], last: int, crc: int) -> None:
        try:
            super().check(path, lines, last, crc)
        except SpoutError as error:
            raise ValueError("changed") from error


@breaks(SpoutPromise.AT_LEAST_ONCE, SpoutType.NON_TRANSACTIONAL)
class ForgetsWhatHasFailed(KeepsItsPlace):
    """Acknowledges what it hands out."""


@breaks(SpoutPromise.EXACTLY_ONCE, OPAQUE)
class RemembersTwoBatches(LineCoordinator):
    """Gives the last two batches again if they are asked for again, whatever has become of the one before them.

    It is careful about files that vanish, and so looks right in every check by itself.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.defined: dict[int, Definition] = {}

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        files = set(self.known)
        if files != set(self.lines()):
            self.defined.clear()
        if txid not in self.defined:
            found = super().initialize_transaction(txid, previous)
            if found is None:
                return None
            self.defined = {at: one for at, one in self.defined.items() if at in (txid - 1, txid + 1)} | {txid: found}
        return self.defined[txid]
