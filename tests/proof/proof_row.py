"""A row of the table: trials that are run until there are enough of them, or the time is over; what is wrong is counted."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Trial:
    """One trial.

    `group`: what it is a trial of, such as a store: wrong ones are named by it, and the CSV has a line for each group.
    `run`: returns what it counted, such as `{"kills": 3}`; without `cases` it is one case. Whatever it raises is a wrong case.
    `samples`: figures over time that trials of a row add to.
    """

    group: str
    run: Callable[[], Mapping[str, int]]
    samples: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """A promise, and what tries to break it.

    `wanted`: how many of what make the row complete; empty: all trials there are.
    `trials`: `trials(work, seed)` gives one trial after the other; servers that it starts end with it, and what it raises then
    is wrong as well. `work` is an empty folder.
    """

    name: str
    what: str
    wanted: Mapping[str, int]
    trials: Callable[[Path, int], Iterator[Trial]]

    def of_size(self, number: int) -> Row:
        """Return the same row at another scale: so many of what it counts first, and of all else in proportion."""
        first = next(iter(self.wanted.values()), number)
        scaled = {what: max(1, round(of * number / first)) for what, of in (self.wanted or {"cases": number}).items()}
        return replace(self, wanted=scaled)


@dataclass
class Record:
    """What came of a row.

    `counts`: all that trials have counted, together and by group.
    `wrong`: what each wrong case raised.
    `samples`: figures over time, of a row that takes some.
    `ended`: whether no trial is left.
    """

    row: Row
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    groups: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    samples: list[dict[str, float]] = field(default_factory=list)
    ended: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether there were as many as are wanted; of a row without a number, all that there are."""
        if not self.row.wanted:
            return self.ended
        return all(self.counts[what] >= number for what, number in self.row.wanted.items())

    @property
    def command(self) -> str:
        """What runs the row again."""
        return f"python -m tests.proof --row {self.row.name} --seed {self.seed}"

    def add(self, group: str, counts: Mapping[str, int]) -> None:
        """Count a trial."""
        counts = {"cases": 1, **counts}
        self.counts.update(counts)
        self.groups.setdefault(group, Counter()).update(counts)

    def fail(self, group: str, error: BaseException) -> None:
        """Count a trial that went wrong."""
        self.add(group, {"wrong": 1})
        told = "".join(traceback.format_exception(error))[-3000:]
        self.wrong.append(f"{group}: {type(error).__name__}: {error}\n{told}")


def run_row(row: Row, seed: int, work: Path, minutes: float | None = None, group: str = "") -> Record:
    """Run the trials of a row until it is complete, or for so many minutes; only those with `group` in their group's name."""
    record, began = Record(row, seed), time.monotonic()
    work.mkdir(parents=True, exist_ok=True)
    trials: Any = row.trials(work, seed)
    try:
        for trial in trials:
            if group in trial.group:
                _run(trial, record)
            record.seconds = time.monotonic() - began
            if record.is_complete or (minutes is not None and record.seconds >= 60 * minutes):
                break
        else:
            record.ended = True
        trials.close()
    except Exception as error:  # noqa: BLE001  what servers and other things do that all trials need
        record.fail("at the begin or the end", error)
    record.seconds = time.monotonic() - began
    return record


def _run(trial: Trial, record: Record) -> None:
    try:
        record.add(trial.group, trial.run())
    except Exception as error:  # noqa: BLE001  each wrong case is told, and the next one is tried
        record.fail(trial.group, error)
    record.samples = trial.samples or record.samples
