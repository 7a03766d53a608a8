"""What holds, promise by promise.

Says on the terminal what a run of the suite is doing.
"""

from __future__ import annotations

import textwrap
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, TextIO

from trident.testing.checks.expecting import Promised, Violation

_WIDTH = 110


class Status(Enum):
    """How a promise fared."""

    OK = "ok"
    VIOLATED = "violated"
    NOT_CLAIMED = "not claimed"
    NOT_RUN = "not run"


_GRAVEST_FIRST = (Status.VIOLATED, Status.NOT_RUN, Status.OK, Status.NOT_CLAIMED)


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes
    ----------
    promise, kind, check
        What was checked, of which kind, by which check.
    status
        How it fared.
    detail
        How the promise is broken; empty if it is not.
    """

    promise: Promised
    kind: str
    check: str
    status: Status
    detail: str = ""


@dataclass
class Findings:
    """All findings of one run of a suite.

    Attributes
    ----------
    seed
        Of everything that was drawn at random: the same seed draws the same again.
    schedules
        How many random schedules ran.
    seconds
        How long it took.
    findings
        In the order of the run.
    """

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
        """The checks that failed."""
        return [finding for finding in self.findings if finding.status is Status.VIOLATED]

    @property
    def violated(self) -> set[Promised]:
        """The promises that are broken."""
        return {finding.promise for finding in self.violations}

    def status(self, promise: Promised) -> Status | None:
        """Return how a promise fared; None if nothing looked at it."""
        found = {finding.status for finding in self.findings if finding.promise is promise}
        return next((status for status in _GRAVEST_FIRST if status in found), None)

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
            lines += textwrap.wrap(finding.detail, _WIDTH, initial_indent="  ", subsequent_indent="  ")
        ran = f"{len(self.findings)} checks, {self.schedules} schedules, seed {self.seed}, {self.seconds:.1f} s"
        return "\n".join([*lines, "", f"{self._verdict()}: {ran}", *self._afterwards(), ""])

    def _verdict(self) -> str:
        late = f"{len(self.not_run)} checks were not run {self.why_not_run}" if self.not_run else ""
        if self.violations:
            return f"{len(self.violated)} promises are broken{f', {late}' if late else ''}"
        return late or "everything that is claimed holds"

    def _afterwards(self) -> list[str]:
        """Return the lines below the verdict."""
        return []


_EVERY_S = 5.0
_LINE_WIDTH = 100


class CheckProgress:
    """One line that is overwritten; if the output is not a terminal, a line every five seconds.

    `out`: where to; None: nowhere.
    `total`: the number of checks.
    """

    def __init__(self, out: TextIO | None, total: int) -> None:
        self._out, self._total = out, total
        self._live = out is not None and out.isatty()
        self._began = self._said = time.monotonic()

    def say(self, number: int, what: str) -> None:
        """Say which check starts, counted from 1."""
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
        """Take the line away."""
        if self._out is not None and self._live:
            self._out.write(f"\r{'':<{_LINE_WIDTH}}\r")
            self._out.flush()
