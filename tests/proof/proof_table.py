"""What came of the rows: a table in Markdown, records as CSV, and a picture of figures over time."""

from __future__ import annotations

import csv
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from tests.harness.kafka_servers import start_kafka
from tests.harness.servers import Server, start_postgres, start_redis, start_s3
from tests.harness.zookeeper_servers import start_zookeeper


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


def _redis_that_keeps(work: Path) -> Server:
    return start_redis(work, "--appendonly", "yes", "--appendfsync", "always", "--save", "")


class RowServers(ExitStack):
    """Starts servers by their names, and closes whatever else is pushed."""

    _starts: ClassVar[dict[str, Callable[[Path], Any]]] = {
        "redis": start_redis,
        "redis that keeps": _redis_that_keeps,
        "postgres": start_postgres,
        "s3": start_s3,
        "zookeeper": start_zookeeper,
        "ensemble": lambda work: start_zookeeper(work, members=3),
        "kafka": start_kafka,
        "two brokers": lambda work: start_kafka(work, 2),
    }

    def __init__(self, work: Path) -> None:
        super().__init__()
        self._work, self._running = work, dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        """Return a server that runs."""
        if name not in self._running:
            folder = self._work / "servers" / name.replace(" ", "-")
            folder.mkdir(parents=True)
            server = self._running[name] = self.enter_context(self._starts[name](folder))
            if name == "s3":
                keys = {"REGION": "us-east-1", "ACCESS_KEY_ID": "user", "SECRET_ACCESS_KEY": "secret"}
                address = {"AWS_ENDPOINT_URL": f"http://{server.address}"}
                self.enter_context(mock.patch.dict(os.environ, address | {f"AWS_{key}": keys[key] for key in keys}))
        return self._running[name]

    @property
    def redis_url(self) -> str:
        """The address of a Redis."""
        return f"redis://{self['redis'].address}/0"

    def log_at(self, home: str) -> str:
        """Return how the address of a log begins that is kept there; empty: in files."""
        if home == "files":
            return ""
        server = self[home]
        if home == "postgres":
            return f"postgresql://trident@{server.address}/postgres?topology="
        return "s3://logs/proof" if home == "s3" else f"zookeeper://{server.hosts}/proof"


_HEAD = ("row", "what", "wanted", "done", "wrong", "seconds", "again")
_WIDTH, _HEIGHT, _ACROSS = 340, 130, 2


def table(records: Sequence[Record]) -> str:
    lines = [_HEAD, ["---"] * len(_HEAD)]
    for record in records:
        row = record.row
        cells = [row.name, row.what, _numbers(row.wanted) or "all", _done(record), f"{len(record.wrong)}"]
        lines.append([*cells, f"{record.seconds:.0f}", f"`{record.command}`"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _done(record: Record) -> str:
    if not record.counts:
        return "not here"
    done = _numbers({what: number for what, number in record.counts.items() if what != "wrong"})
    return done if record.is_complete else f"{done} (cut short)"


def _numbers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {what}" for what, number in counts.items())


def save(records: Sequence[Record], out: Path, about: Mapping[str, str]) -> None:
    """Append the records to files in a folder, and draw the samples.

    `about`: what is the same for all, such as date and commit.
    """
    out.mkdir(parents=True, exist_ok=True)
    for record in records:
        same: dict[str, Any] = {**about, "row": record.row.name, "seed": record.seed}
        counts = {"done": _done(record), "wrong": len(record.wrong), "seconds": round(record.seconds)}
        _append(out / "rows.csv", {**same, **counts, "command": record.command})
        for group, counted in record.groups.items():
            for what, number in counted.items():
                _append(out / "groups.csv", {**same, "group": group, "what": what, "number": number})
        if record.samples:
            name = out / f"{record.row.name.lower()}-samples"
            with name.with_suffix(".csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, list(record.samples[0]))
                writer.writeheader()
                writer.writerows(record.samples)
            name.with_suffix(".svg").write_text(picture(record.samples, "seconds"), encoding="utf-8")
        if record.wrong:
            with (out / "wrong.txt").open("a", encoding="utf-8") as file:
                file.write(f"{record.command}\n" + "\n".join(record.wrong) + "\n")


def _append(path: Path, line: Mapping[str, object]) -> None:
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(line))
        if is_new:
            writer.writeheader()
        writer.writerow(line)


def picture(samples: Sequence[Mapping[str, float]], across: str) -> str:
    """Draw each figure over `across` as a small line chart from zero up, with its name and its last value, as SVG."""
    names = [name for name in samples[0] if name != across]
    last = max(sample[across] for sample in samples) or 1.0
    rows = -(-len(names) // _ACROSS)
    charts = []
    for at, name in enumerate(names):
        left, top = at % _ACROSS * _WIDTH, at // _ACROSS * _HEIGHT
        most = max(sample[name] for sample in samples) or 1.0
        points = " ".join(
            f"{left + 10 + sample[across] / last * (_WIDTH - 30):.1f},{top + _HEIGHT - 15 - sample[name] / most * 80:.1f}"
            for sample in samples
        )
        charts.append(
            f'<text x="{left + 10}" y="{top + 20}">{escape(name)}: {samples[-1][name]:,.1f} (most {most:,.1f})</text>'
            f'<path d="M{left + 10},{top + _HEIGHT - 15}h{_WIDTH - 30}" stroke="#bbb"/>'
            f'<polyline points="{points}" fill="none" stroke="#1f6feb" stroke-width="1.5"/>'
        )
    size = f'width="{_ACROSS * _WIDTH}" height="{rows * _HEIGHT}"'
    style = '<rect width="100%" height="100%" fill="#fff"/><g font-family="sans-serif" font-size="12" fill="#333">'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{"".join(charts)}</g></svg>\n'
