"""spout_suite: the whole contract and random schedules over one spout, without pytest, and what holds as a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TextIO

from trident.spout.interfaces import SpoutType
from trident.testing.checks.promises import SCHEDULED, Promised, SpoutPromise
from trident.testing.checks.suite import Findings, SuiteRunner, promise_table
from trident.testing.spout.source_under_test import SpoutSource
from trident.testing.spout.spout_contract import SpoutContract


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
    report = SpoutReport(seed)
    if not callable(source):
        raise TypeError(
            f"spout_suite was given a {type(source).__name__}; give your subclass of SpoutSource, not an instance"
        )
    contract: type[SpoutContract] = type(
        "SpoutContract", (SpoutContract,), {"source": staticmethod(source), "seed": seed}
    )
    claimed, kind = _scheduled(contract())  # raises what is wrong with the source itself
    promises, checks = list(SpoutPromise), contract.checks()
    runner = SuiteRunner(report, len(checks), at_most, out)
    for name in sorted(checks, key=lambda name: promises.index(checks[name].promise)):
        if checks[name].promise not in SCHEDULED:
            runner.check(contract(), name, kind, name)

    runner.run_schedules(contract(), claimed, kind, seconds)
    runner.end()
    return report


def _scheduled(case: SpoutContract) -> tuple[SpoutPromise | None, str]:
    """Return the promise that random schedules are about, None if the spout makes none; and its kind."""
    try:
        if case.kind is not SpoutType.NON_TRANSACTIONAL:
            return SpoutPromise.EXACTLY_ONCE, case.kind.value
        return SpoutPromise.AT_LEAST_ONCE if case.filled.source.at_least_once else None, case.kind.value
    finally:
        case.teardown_method()


@dataclass
class SpoutReport(Findings):
    """All findings of one run of `spout_suite`."""

    promises: ClassVar[type[Promised]] = SpoutPromise
    why_not_run: ClassVar[str] = "because they build on what is broken, or for want of time"


def spout_table(reports: Mapping[str, SpoutReport]) -> str:
    """Return a table: a line for each promise, a column for each spout, by the names of the reports."""
    return promise_table(SpoutPromise, reports)
