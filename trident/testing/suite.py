"""Makes the checks of contracts, and runs random schedules, without pytest; says what it does, and then what holds."""

import math
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import ClassVar, TextIO
from unittest import SkipTest

from trident.errors import describe
from trident.testing.contract import BUILDS_ON, SCHEDULED, Contract, Promised, Violation

_FEWEST_SCHEDULES = 6
_LINE_WIDTH = 100
_EVERY_S = 5.0


class Status(Enum):
    """How a promise fared."""

    VIOLATED = "violated"  # the gravest comes first
    NOT_RUN = "not run"
    OK = "ok"
    NOT_CLAIMED = "not claimed"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check; `detail` says how the promise is broken, if it is."""

    promise: Promised
    kind: str
    check: str
    status: Status
    detail: str = ""


@dataclass
class Findings:
    """All findings of one run of a suite, in its order; the same `seed` draws the same again."""

    promises: ClassVar[type[Promised]] = Promised
    why_not_run: ClassVar[str] = "for want of time"

    seed: int = 0
    schedules: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything that is claimed was checked, and holds."""
        return bool(self.findings) and not self.violations and not self.not_run

    @property
    def not_run(self) -> list[Finding]:
        """The checks that the time was over for."""
        return [finding for finding in self.findings if finding.status is Status.NOT_RUN]

    @property
    def violations(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.status is Status.VIOLATED]

    @property
    def violated(self) -> set[Promised]:
        return {finding.promise for finding in self.violations}

    def status(self, promise: Promised) -> Status | None:
        """Return how a promise fared; None if nothing looked at it."""
        found = {finding.status for finding in self.findings if finding.promise is promise}
        return next((status for status in Status if status in found), None)

    def raise_if_violated(self) -> None:
        """Raise `Violation` with the report, unless everything holds."""
        if not self.ok:
            raise Violation(f"\n{self}")

    def __str__(self) -> str:
        lines = ["promise         verdict      checks  meaning"]
        for promise in self.promises:
            status = self.status(promise)
            if status is not None:
                number = sum(finding.promise is promise for finding in self.findings)
                lines.append(f"{promise.title:<15} {status.value:<12} {number:>6}  {promise.value}")
        for finding in self.violations:
            lines += ["", f"{finding.promise.title} ({finding.kind}): {finding.check}"]
            lines += textwrap.wrap(finding.detail, 110, initial_indent="  ", subsequent_indent="  ")
        ran = f"{len(self.findings)} checks, {self.schedules} schedules, seed {self.seed}, {self.seconds:.1f} s"
        return "\n".join([*lines, "", f"{self._verdict()}: {ran}", *self._afterwards(), ""])

    def _verdict(self) -> str:
        late = f"{len(self.not_run)} checks were not run {self.why_not_run}" if self.not_run else ""
        if self.violations:
            return f"{len(self.violated)} promises are broken{f', {late}' if late else ''}"
        return late or "everything that is claimed holds"

    def _afterwards(self) -> list[str]:
        return []


def promise_table(promises: type[Promised], reports: Mapping[str, Findings]) -> str:
    lines = [["promise", *reports, "meaning"]]
    for promise in promises:
        statuses = [report.status(promise) for report in reports.values()]
        lines.append([promise.title, *("–" if status is None else status.value for status in statuses), promise.value])
    return text_table(lines)


def text_table(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = [" | ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines]
    rule = "|".join("-" * (width + 2) for width in widths)
    return "".join(f"{row}\n" for row in (f"| {rows[0]} |", f"|{rule}|", *(f"| {row} |" for row in rows[1:])))


class CheckProgress:
    """One line that is overwritten; if the output is not a terminal, a line every five seconds."""

    def __init__(self, out: TextIO | None, total: int) -> None:
        self._out, self._total = out, total
        self._live = out is not None and out.isatty()
        self._began = self._said = time.monotonic()

    def say(self, number: int, what: str) -> None:
        if self._out is None:
            return
        now = time.monotonic()
        if not self._live and number > 1 and now - self._said < _EVERY_S:
            return
        self._said = now
        line = f"{now - self._began:5.1f} s  {min(number, self._total)}/{self._total}  {what}"[:_LINE_WIDTH]
        self._out.write(f"\r{line:<{_LINE_WIDTH}}" if self._live else f"{line}\n")
        self._out.flush()

    def end(self) -> None:
        if self._out is not None and self._live:
            self._out.write(f"\r{'':<{_LINE_WIDTH}}\r")
            self._out.flush()


class OutOfTime(BaseException):
    """The time of the run is over. Not an `Exception`: a check that expects errors must not take it for one."""


class SuiteRunner:
    """Makes checks one after the other until a time of `time.monotonic`, and notes what it finds in a report."""

    def __init__(self, report: Findings, checks: int, at_most: float | None, out: TextIO | None) -> None:
        self._report, self._out = report, out
        self._began = time.monotonic()
        self._progress = CheckProgress(sys.stderr if out is None else None, checks)
        self.until = math.inf if at_most is None else self._began + at_most

    def check(self, case: Contract, name: str, kind: str, where: str) -> None:
        self._progress.say(len(self._report.findings) + 1, where)
        check = case.checks()[name]
        self.note(check.promise, kind, where, *self._outcome(case, check.promise, lambda: case.make(check)))

    def run_schedules(self, case: Contract, claimed: Promised | None, kind: str, seconds: float) -> None:
        """Run random schedules of what is claimed, if anything, until so many seconds have passed, or one fails."""
        number, status = 0, Status.OK
        until = min(self.until, self._began + seconds)
        while claimed and number < 200 and (number < _FEWEST_SCHEDULES or time.monotonic() <= until):
            self._progress.say(len(self._report.findings), f"schedule {number + 1}")
            status, detail = self._outcome(case, claimed, partial(case.run_schedule, number))
            if status is Status.VIOLATED:
                self.note(claimed, kind, f"schedule {number}", status, detail)
                return
            if status is Status.NOT_RUN:
                status = Status.OK if number >= _FEWEST_SCHEDULES else status
                break
            number += 1
            self._report.schedules += 1
        for promise in SCHEDULED:
            if isinstance(promise, self._report.promises):
                self.note(promise, kind, "random schedules", status if promise is claimed else Status.NOT_CLAIMED)

    def _outcome(self, case: Contract, promise: Promised, body: Callable[[], str | None]) -> tuple[Status, str]:
        """Run a part of a case, which may return why it is not claimed; return how it fared, and the detail."""
        try:
            if time.monotonic() > self.until or self._report.violated & set(BUILDS_ON.get(promise, ())):
                raise OutOfTime  # or what the promise builds on is broken
            reason = body()
            return (Status.NOT_CLAIMED, reason) if reason else (Status.OK, "")
        except OutOfTime:
            return Status.NOT_RUN, ""
        except SkipTest as skipped:
            return Status.NOT_CLAIMED, str(skipped)
        except Exception as error:  # noqa: BLE001 - what a user gives may raise anything
            return Status.VIOLATED, str(error) if isinstance(error, Violation) else f"raised {describe(error)}"
        finally:
            case.teardown_method()

    def note(self, promise: Promised, kind: str, where: str, status: Status, detail: str = "") -> None:
        self._report.findings.append(Finding(promise, kind, where, status, detail))

    def end(self) -> None:
        self._progress.end()
        self._report.seconds = time.monotonic() - self._began
        (self._out or sys.stdout).write(str(self._report))
