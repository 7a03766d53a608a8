"""spout_suite: the whole contract and random schedules over one spout, without pytest, and what holds as a report."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TextIO
from unittest import SkipTest

from trident.errors import describe
from trident.spout.interfaces import SpoutType
from trident.testing.checks.expecting import Promised, Violation, promise_of
from trident.testing.checks.findings import CheckProgress, Finding, Findings, Status
from trident.testing.spout.source_under_test import SpoutPromise, SpoutSource
from trident.testing.spout.spout_contract import SpoutContract

_FEWEST_SCHEDULES = 6
_MOST_SCHEDULES = 200
_ROWS = (SpoutPromise.VALUES, SpoutPromise.NO_GAP, SpoutPromise.NO_OVERLAP)

_SCHEDULED = (SpoutPromise.AT_LEAST_ONCE, SpoutPromise.EXACTLY_ONCE)

_AROUND_ROWS = (SpoutPromise.SHIPPED, SpoutPromise.SIZE, SpoutPromise.LAG, SpoutPromise.CLOSE)

# A check that says nothing while another promise is broken: a report names what is broken, not all that follows from it.
BUILDS_ON: dict[Promised, tuple[SpoutPromise, ...]] = {
    SpoutPromise.THROTTLE: (SpoutPromise.LIMIT, *_ROWS),
    SpoutPromise.LAG: _ROWS,
    SpoutPromise.AHEAD: _ROWS,
    SpoutPromise.RETRY: (SpoutPromise.REPLAY, *_ROWS),
    SpoutPromise.RESTART: _ROWS,
    SpoutPromise.CUTS: (SpoutPromise.REPLAY, *_ROWS),
    SpoutPromise.ELSEWHERE: (SpoutPromise.REPLAY,),
    SpoutPromise.NEW_PARTITIONS: (SpoutPromise.GROWTH, SpoutPromise.RESTART, *_ROWS),
    SpoutPromise.LOST_PARTITIONS: (SpoutPromise.REPLAY, SpoutPromise.RETRY, *_ROWS),
    SpoutPromise.ERRORS: (SpoutPromise.REPLAY, SpoutPromise.RETRY, *_ROWS),
    SpoutPromise.CLOSE: (SpoutPromise.SHIPPED,),
    SpoutPromise.CHANGES: (SpoutPromise.REPLAY, SpoutPromise.ELSEWHERE),
    **dict.fromkeys(_SCHEDULED, tuple(each for each in SpoutPromise if each not in (*_SCHEDULED, *_AROUND_ROWS))),
}


def spout_suite(
    source: Callable[[], SpoutSource],
    *,
    seconds: float = 10.0,
    seed: int = 0,
    at_most: float | None = None,
    out: TextIO | None = None,
) -> SpoutReport:
    """Check a spout: the whole contract, then random schedules of failures, crashes and lost partitions.

    Parameters
    ----------
    source
        Your subclass of `SpoutSource`, or a function that returns one; it is called for each check.
    seconds
        When no further schedule is begun. The contract runs to its end, and a few schedules too, unless `at_most` says.
    seed
        Decides everything that is drawn at random.
    at_most
        Seconds after which no check starts: what is left is reported as not run, and the report is not `ok`.
    out
        Where the report is printed; None: standard output, and standard error shows meanwhile what is being checked.

    Returns
    -------
    SpoutReport
        `report.ok`, `report.violated`, `report.raise_if_violated()`.
    """
    began, report = time.monotonic(), SpoutReport(seed)
    until = math.inf if at_most is None else began + at_most
    if not callable(source):
        raise TypeError(
            f"spout_suite was given a {type(source).__name__}; give your subclass of SpoutSource, not an instance"
        )
    contract = type("SpoutContract", (SpoutContract,), {"source": staticmethod(source), "seed": seed})
    claimed, kind = _scheduled(contract())  # raises what is wrong with the source itself
    checks = sorted(_checks(contract), key=lambda name: list(SpoutPromise).index(_promise(contract, name)))
    progress = CheckProgress(sys.stderr if out is None else None, len(checks))
    for number, name in enumerate(checks, 1):
        progress.say(number, name)
        if _promise(contract, name) not in _SCHEDULED:
            report.findings.append(_run_check(contract(), name, report, until))
    cases = Cases(contract, claimed, kind)
    _run_schedules(cases, report, progress, min(until, began + seconds), until)
    progress.end()
    report.seconds = time.monotonic() - began
    (out or sys.stdout).write(str(report))
    return report


def _checks(contract: type[SpoutContract]) -> Iterator[str]:
    names = {name: None for base in reversed(contract.__mro__) for name in vars(base) if name.startswith("test_")}
    yield from names


def _promise(contract: type[SpoutContract], name: str) -> SpoutPromise:
    found = promise_of(getattr(contract, name))
    assert isinstance(found, SpoutPromise)
    return found


def _run_check(case: SpoutContract, name: str, report: SpoutReport, until: float) -> Finding:
    promise = _promise(type(case), name)
    if time.monotonic() > until or report.violated & set(BUILDS_ON.get(promise, ())):
        return Finding(promise, "", name, Status.NOT_RUN)
    try:
        getattr(case, name)()
    except SkipTest as reason:
        return Finding(promise, _kind(case), name, Status.NOT_CLAIMED, str(reason))
    except Exception as error:  # noqa: BLE001 - a user's spout may raise anything
        return Finding(promise, _kind(case), name, Status.VIOLATED, _detail(error))
    finally:
        case.teardown_method()
    return Finding(promise, "", name, Status.OK)


class Cases(NamedTuple):
    """What the schedules run on, and which promise they are about."""

    contract: type[SpoutContract]
    claimed: SpoutPromise | None
    kind: str


def _run_schedules(cases: Cases, report: SpoutReport, progress: CheckProgress, enough: float, until: float) -> None:
    """Run random schedules until the time is over, or one fails."""
    contract, claimed, kind = cases
    is_late = time.monotonic() > until or bool(report.violated & set(BUILDS_ON[SpoutPromise.EXACTLY_ONCE]))
    for number in range(_MOST_SCHEDULES if claimed is not None and not is_late else 0):
        if number >= _FEWEST_SCHEDULES and time.monotonic() > enough:
            break
        progress.say(len(report.findings), f"schedule {number + 1}")
        case = contract()
        try:
            case.run_schedule(number)
        except Exception as error:  # noqa: BLE001 - a user's spout may raise anything
            assert claimed is not None
            report.findings.append(Finding(claimed, kind, f"schedule {number}", Status.VIOLATED, _detail(error)))
            return
        finally:
            case.teardown_method()
        report.schedules += 1
    for promise in _SCHEDULED:
        status = Status.NOT_CLAIMED if promise is not claimed else Status.NOT_RUN if is_late else Status.OK
        report.findings.append(Finding(promise, kind, "random schedules", status))


def _scheduled(case: SpoutContract) -> tuple[SpoutPromise | None, str]:
    """Return the promise that random schedules are about, None if the spout makes none; and its kind."""
    try:
        if case.kind is not SpoutType.NON_TRANSACTIONAL:
            return SpoutPromise.EXACTLY_ONCE, case.kind.value
        return SpoutPromise.AT_LEAST_ONCE if case.filled.source.at_least_once else None, case.kind.value
    finally:
        case.teardown_method()


def _kind(case: SpoutContract) -> str:
    try:
        return case.kind.value
    finally:
        case.teardown_method()


def _detail(error: Exception) -> str:
    return str(error) if isinstance(error, Violation) else f"raised {describe(error)}"


@dataclass
class SpoutReport(Findings):
    """All findings of one run of `spout_suite`."""

    promises: ClassVar[type[Promised]] = SpoutPromise
    why_not_run: ClassVar[str] = "because they build on what is broken, or for want of time"


def spout_table(reports: Mapping[str, SpoutReport]) -> str:
    """Return a table: a line for each promise, a column for each spout, by the names of the reports."""
    lines = [["promise", *reports, "meaning"]]
    for promise in SpoutPromise:
        statuses = [report.status(promise) for report in reports.values()]
        lines.append([promise.title, *("–" if status is None else status.value for status in statuses), promise.value])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = [" | ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines]
    rule = "|".join("-" * (width + 2) for width in widths)
    return "".join(f"{row}\n" for row in (f"| {rows[0]} |", f"|{rule}|", *(f"| {row} |" for row in rows[1:])))
