"""SpoutReport: what holds of a spout, promise by promise; and a table of several spouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from trident.testing.checks.expecting import Promised
from trident.testing.checks.findings import Findings
from trident.testing.spout.spout_promises import SpoutPromise

__all__ = ["SpoutReport", "spout_table"]


@dataclass
class SpoutReport(Findings):
    """All findings of one run of `spout_suite`."""

    promises: ClassVar[type[Promised]] = SpoutPromise
    why_not_run: ClassVar[str] = "because they build on what is broken, or for want of time"


def spout_table(reports: Mapping[str, SpoutReport]) -> str:
    """Return a table: a line for each promise, a column for each spout, by the names of the reports."""
    lines = [["promise", *reports, "meaning"]]
    for promise in SpoutPromise:
        told = [report.status(promise) for report in reports.values()]
        lines.append([promise.title, *("–" if status is None else status.value for status in told), promise.value])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = [" | ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines]
    rule = "|".join("-" * (width + 2) for width in widths)
    return "".join(f"{row}\n" for row in (f"| {rows[0]} |", f"|{rule}|", *(f"| {row} |" for row in rows[1:])))
