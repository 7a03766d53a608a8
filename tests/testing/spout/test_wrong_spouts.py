"""The suite finds every spout that is wrong in one thing, names the promise that it breaks, and passes the one that is not."""

import io
from pathlib import Path
from typing import Any

import pytest

from tests.testing.mutated_classes import mutated, source_of
from tests.testing.spout.line_spout import LineCoordinator, LineEmitter, LineSource, LineSpout
from trident.spout import SpoutType
from trident.testing import SpoutPromise, SpoutReport, Status, Violation, spout_suite

pytestmark = pytest.mark.slow


KEPT: dict[Path, list[str]] = {}
READ_PARTS: set[Any] = set()
OPENED: list[Any] = []
OPAQUE, NON_TRANSACTIONAL = SpoutType.OPAQUE, SpoutType.NON_TRANSACTIONAL

START = 'return dict(previous["at"]) if previous else {}'
AT = 'dict(previous["at"])'
BEGIN = "begin = at.get(name, 0)"
RANGES = '{"ranges": ranges,'
LINES = "return self.known"
PARTS = 'rows = sum(end - start for _, start, end, _ in definition["ranges"])'
PART = "folder, name, start, end, last, crc = part"
READ = "return path.read_text().splitlines()"
SUCCESS = "def success(self, txid: int, definition: Definition) -> None: ..."
CLOSE = "def close(self) -> None: ..."
THROTTLE, LIMITED = "self.share = share", "return max(1, int(LIMIT * self.share))"
SIZE = 'size: int = definition["bytes"]'
DESCRIBED = "self.folder, self.spout_type = folder, spout_type"


def defining(*statements: str) -> tuple[str, str]:
    """Return the change of a coordinator that looks once more at what it has defined."""
    define = 'return {"ranges": ranges, "at": at, "bytes": size} if ranges else None'
    return define, "\n        ".join([define.replace("return", "found ="), *statements, "return found"])


def before(line: str, *statements: str) -> tuple[str, str]:
    """Return the change of what does something before a line."""
    return line, "\n        ".join([*statements, line])


KEEPS_ITS_PLACE = (
    (START, "return dict(self.kept or (previous or {}).get('at', {}))"),
    defining("self.kept = dict(at) if found else self.kept"),
)
KEEPS_THE_ENDS = defining("self.kept |= {txid: dict(at)} if found else {}")

CHANGES: dict[str, tuple[SpoutPromise, *tuple[tuple[str, str], ...]]] = {
    # rows
    "NamesAnotherColumn": (SpoutPromise.FIELDS, ('{"n": pa.array', '{"number": pa.array')),
    "EmitsAColumnTooMany": (SpoutPromise.FIELDS, ('pa.string())}', 'pa.string()), "more": pa.array(numbers)}')),
    "ChangesText": (SpoutPromise.VALUES, ("[row[1] for", "[row[1].lower() for")),
    "SkipsALineBetweenBatches": (SpoutPromise.NO_GAP, (AT, '{name: end + 1 for name, end in previous["at"].items()}')),
    "DropsTheLastTable": (
        SpoutPromise.NO_GAP, ("in range(start, end, 3):", "in list(range(start, end, 3))[:-1] or [start]:")
    ),
    "BeginsWithTheLastLine": (SpoutPromise.NO_OVERLAP, (BEGIN, f"{BEGIN} - (0 < at.get(name, 0) < len(lines))")),
    "EmitsBackwards": (SpoutPromise.ORDER, ("lines[at : min(end, at + 3)]]", "lines[at : min(end, at + 3)]][::-1]")),
    "CutsBackwards": (SpoutPromise.ORDER, ("range(start, end, step)\n        ]", "range(start, end, step)\n        ][::-1]")),
    # batches
    "TakesAll": (SpoutPromise.LIMIT, (LIMITED, LIMITED.replace("return", "return 10**6 if self.share == 1.0 else"))),
    "LimitsEachFile": (SpoutPromise.LIMIT, ("left - (end - begin)", "left - (end - begin) * (self.share < 1.0)")),
    "IgnoresTheThrottle": (SpoutPromise.THROTTLE, (THROTTLE, "pass")),
    "IsThrottledToNothing": (SpoutPromise.THROTTLE, (LIMITED, "return int(LIMIT * self.share)")),
    "StaysThrottled": (SpoutPromise.THROTTLE, (THROTTLE, "self.share = min(self.share, share)")),
    "DefinesEmptyBatches": (SpoutPromise.IDLE, ("if ranges else None", "if ranges or previous else None")),
    "WaitsForMore": (  # and so blocks the thread of the batches
        SpoutPromise.IDLE, defining("time.sleep(0 if found else 1.2 * LineSource.idle_s)")
    ),
    "ListsOnce": (SpoutPromise.GROWTH, ("self.known = {", "self.known = self.known or {")),
    "EndsForGood": (
        SpoutPromise.GROWTH,
        defining('found = found if "end" not in self.kept else None', 'self.kept |= {} if found else {"end": 1}'),
    ),
    # definitions
    "DefinesWithTuples": (SpoutPromise.PLAIN, (RANGES, '{"ranges": list(map(tuple, ranges)),')),
    "DefinesWithASet": (SpoutPromise.PLAIN, (RANGES, f'{{"files": {{one[0] for one in ranges}}, {RANGES[1:]}')),
    "ChangesThePreviousDefinition": (SpoutPromise.PLAIN, (AT, 'previous["at"]')),
    "KeepsAllRanges": (
        SpoutPromise.SMALL, (RANGES, f'{{"earlier": previous["earlier"] + previous["ranges"] if previous else [], {RANGES[1:]}')
    ),
    "ReadsToTheEndOfToday": (  # leaves the end of a batch open where it is the end of the file
        SpoutPromise.REPLAY,
        (RANGES, f'{{"tails": [name for name, end in at.items() if end == len(self.known[name])], {RANGES[1:]}'),
        (
            "(self.folder, name, at, min(at + step, end),",
            "(self.folder, name, at, len(self.lines().get(name, ())) if at + step >= end and self.folder.is_dir()"
            ' and name in definition["tails"] else min(at + step, end),',
        ),
    ),
    "ForgetsWhatItHasRead": (  # consumes its source
        SpoutPromise.REPLAY,
        (PART, f"{PART}\n        if part in READ_PARTS:\n            return\n        READ_PARTS.add(part)"),
    ),
    "LosesTheRemainder": (
        SpoutPromise.CUTS, ("-(-rows // parallelism)", "rows // parallelism"),
        ("in range(start, end, step)", "in range(start, end if parallelism == 1 else end - step + 1, step)"),
    ),
    "KeepsTheLinesInTheProcess": (
        SpoutPromise.ELSEWHERE, (READ, "return KEPT.get(path, [])"),
        before(LINES, "KEPT.update({self.folder / name: lines for name, lines in self.known.items()})"),
    ),
    "RemembersItsParts": (  # cuts only what it has defined itself
        SpoutPromise.ELSEWHERE, defining("self.kept[txid] = True"),
        before(PARTS, "if attempt.txid not in self.kept:", "    return []"),
    ),
    "CountsWhatIsCommitted": (
        SpoutPromise.AHEAD, (START, f"previous = self.kept or previous\n        {START}"),
        (SUCCESS, SUCCESS.replace("...", "self.kept = definition")),
    ),
    "DropsAllAtSuccess": (  # keeps what it has defined until any batch is committed
        SpoutPromise.AHEAD, defining('self.kept |= {txid: "waiting"} if found else {}'),
        before(PARTS, 'if self.kept.get(attempt.txid) == "dropped":', "    return []"),
        (SUCCESS, SUCCESS.replace("...", 'self.kept = {at: "dropped" for at in self.kept if at != txid}')),
    ),
    "KeepsItsPlace": (SpoutPromise.RETRY, *KEEPS_ITS_PLACE),  # whatever it is asked
    "KeepsItsPlaceOpaquely": (SpoutPromise.RETRY, *KEEPS_ITS_PLACE),
    "RemembersTheEndOfBatches": (SpoutPromise.RESTART, (START, "return dict(self.kept.get(txid - 1, {}))"), KEEPS_THE_ENDS),
    "SavesItsPlaceWhenItIsClosed": (
        SpoutPromise.RESTART, KEEPS_THE_ENDS,
        (
            START,
            'note = self.folder.parent / "note"\n        noted = json.loads(note.read_text()) if note.exists() else {}\n'
            "        return dict(self.kept.get(txid - 1, noted))",
        ),
        (
            CLOSE,
            CLOSE.replace("...", "\n        if self.kept:\n")
            + '            (self.folder.parent / "note").write_text(json.dumps(self.kept[max(self.kept)]))',
        ),
    ),
    "BeginsAgainAtTheEnd": (  # as a consumer does that begins at the latest record
        SpoutPromise.RESTART,
        (
            START,
            'if "begun" not in self.kept:\n'
            '            self.kept["begun"] = {name: len(lines) for name, lines in self.lines().items()} if previous else {}\n'
            '        return dict(self.kept["begun"] or previous["at"]) if previous else {}',
        ),
    ),
    # partitions
    "KnowsTheFilesOfTheBeginning": (
        SpoutPromise.NEW_PARTITIONS,
        (LINES, "return {name: lines for name, lines in self.known.items() if int(name) < LineSource.partitions}"),
    ),
    "BeginsNewFilesAtTheirEnd": (
        SpoutPromise.NEW_PARTITIONS,
        (BEGIN, "begin = at.setdefault(name, 0 if int(name) < LineSource.partitions else len(lines))"),
    ),
    "SkipsWhatIsLost": (
        SpoutPromise.LOST_PARTITIONS,
        (PART, f"{PART}\n        if folder.is_dir() and not (folder / name).exists():\n            return"),
    ),
    "ForgetsTheLost": (
        SpoutPromise.LOST_PARTITIONS, ('"at": at,', '"at": {name: end for name, end in at.items() if name in self.known},')
    ),
    "StopsWithTheLost": (  # although the others could be read
        SpoutPromise.LOST_PARTITIONS,
        before(
            LINES, "if gone := set(self.kept) - set(self.known):",
            '    raise SpoutError(f"list {self.folder}: {sorted(gone)} are gone; bring them back")', "self.kept |= self.known",
        ),
    ),
    # what is around the rows
    "HoldsALock": (SpoutPromise.SHIPPED, before(DESCRIBED, "self.lock = threading.Lock()")),
    "OpensAFile": (SpoutPromise.SHIPPED, before(DESCRIBED, 'OPENED.append((folder.parent / "opened").open("w"))')),
    "SendsAThread": (
        SpoutPromise.SHIPPED, ("is_quick = True", "is_quick = True\n    def __init__(self): self.lock = threading.Lock()")
    ),
    "AsksForTheSize": (SpoutPromise.SIZE, (SIZE, "size: int = sum(map(len, self.lines().values())) * 10")),
    "CountsNothing": (SpoutPromise.SIZE, (SIZE, "size: int = 0")),
    "AsksForTheLag": (SpoutPromise.LAG, ("return Lag(", "self.lines()\n        return Lag(")),
    "IsBehindForEver": (SpoutPromise.LAG, ('len(lines) - definition["at"].get(name, 0)', "len(lines)")),
    "LeavesFilesOpen": (SpoutPromise.CLOSE, (READ, f"OPENED.append(path.open())\n            {READ}")),
    "LeavesAThread": (
        SpoutPromise.CLOSE,
        before("self.kept: dict", "threading.Thread(target=threading.Event().wait, args=(20.0,), daemon=True).start()"),
    ),
    "RaisesWhatItGets": (SpoutPromise.ERRORS, ("except FileNotFoundError", "except ZeroDivisionError")),
    "TakesAnOutageForAnEnd": (
        SpoutPromise.ERRORS, (PART, f"{PART}\n        if not folder.is_dir():\n            return")
    ),
    "DefinesWithoutASource": (SpoutPromise.ERRORS, ("if not self.folder.is_dir():", "if False:")),
    "ChecksNothing": (SpoutPromise.CHANGES, ("if len(lines) < last or", "if False and")),
    "SaysItInItsOwnWords": (SpoutPromise.CHANGES, ("raise ReplayMismatchError(", "raise ValueError(")),
    "ForgetsWhatHasFailed": (SpoutPromise.AT_LEAST_ONCE, *KEEPS_ITS_PLACE),  # acknowledges what it hands out
    "RemembersTwoBatches": (  # gives them again if asked; it is careful about files that vanish, and looks right in every check
        SpoutPromise.EXACTLY_ONCE,
        before(
            "at, ranges, left, size = self.start", "files = set(self.known)", "if files != set(self.lines()):",
            "    self.kept.clear()", "if txid in self.kept:", "    return self.kept[txid]",
        ),
        defining(
            "if found:", "    self.kept = {n: one for n, one in self.kept.items() if n in (txid - 1, txid + 1)} | {txid: found}"
        ),
    ),
}  # fmt: skip
TYPES = {
    **dict.fromkeys(
        ("KeepsItsPlaceOpaquely", "BeginsAgainAtTheEnd", "BeginsNewFilesAtTheirEnd", "ForgetsTheLost", "StopsWithTheLost",
         "RemembersTwoBatches"), OPAQUE,
    ),
    "ForgetsWhatHasFailed": NON_TRANSACTIONAL,
}  # fmt: skip


def _source(name: str, promise: SpoutPromise, changes: tuple[tuple[str, str], ...]) -> type[LineSource]:
    """Return the source whose spout has the parts that the changes make of the right ones."""
    parts: dict[str, Any] = {}
    for part, right in (("coordinator", LineCoordinator), ("emitter", LineEmitter), ("made", LineSpout)):
        if here := [change for change in changes if change[0] in source_of(right)]:
            parts[part] = mutated(globals(), right, name, *here)
    made = parts.pop("made", None) or type("LineSpout", (LineSpout,), parts)
    options = {"spout_type": TYPES.get(name, SpoutType.TRANSACTIONAL), "durable": promise is SpoutPromise.ELSEWHERE}
    return type("WrongSource", (LineSource,), {**options, "made": made, "at_least_once": True})


WRONG: dict[str, tuple[type[LineSource], SpoutPromise]] = {
    name: (_source(name, promise, tuple(changes)), promise) for name, (promise, *changes) in CHANGES.items()
}


def run(source: Any, **arguments: Any) -> SpoutReport:
    return spout_suite(source, **{"seconds": 0.0, "out": io.StringIO(), **arguments})


class OpaqueSource(LineSource):
    spout_type = SpoutType.OPAQUE


class LooseSource(LineSource):
    spout_type = SpoutType.NON_TRANSACTIONAL


class AtLeastOnce(LooseSource):
    at_least_once = True


class DurableSource(LineSource):
    durable = True


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("source", [LineSource, OpaqueSource])
def test_the_correct_spout_passes(source: type[LineSource], seed: int) -> None:
    report = run(source, seed=seed)
    report.raise_if_violated()
    assert report.schedules >= 6


@pytest.mark.long
def test_the_correct_spout_passes_in_another_process() -> None:
    report = run(DurableSource)
    report.raise_if_violated()
    unclaimed = [promise for promise in SpoutPromise if report.status(promise) is not Status.OK]
    assert unclaimed == [SpoutPromise.AT_LEAST_ONCE]


def test_a_non_transactional_spout_may_promise_that_no_row_is_lost() -> None:
    report = run(AtLeastOnce)
    report.raise_if_violated()
    assert report.status(SpoutPromise.AT_LEAST_ONCE) is Status.OK


def test_what_is_not_claimed_is_told() -> None:
    report = run(LooseSource)
    report.raise_if_violated()
    unclaimed = {promise for promise in SpoutPromise if report.status(promise) is Status.NOT_CLAIMED}
    assert unclaimed == {
        SpoutPromise.REPLAY, SpoutPromise.ELSEWHERE, SpoutPromise.RETRY, SpoutPromise.RESTART,
        SpoutPromise.LOST_PARTITIONS, SpoutPromise.CHANGES, SpoutPromise.AT_LEAST_ONCE, SpoutPromise.EXACTLY_ONCE,
    }  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_spout_is_found_under_the_promise_that_it_breaks(wrong: str) -> None:
    source, promise = WRONG[wrong]
    report = run(source, seed=2)
    assert report.violated == {promise}, str(report)
    with pytest.raises(Violation, match=promise.title):
        report.raise_if_violated()


def test_every_promise_is_broken_by_a_wrong_spout() -> None:
    assert {promise for _, promise in WRONG.values()} == set(SpoutPromise)
