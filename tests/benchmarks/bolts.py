"""How fast spouts, bolts and ackers are: `python -m tests.benchmarks.bolts [ROW …] [--engine spark|local] [--seconds 10]`.

Sentences of ten words → split (shuffle) → count (fields), each word anchored and acked; two workers, each with a spout, a
split, a count and an acker. Each row prints one JSON line: what is wanted, the figures, and whether they are as wanted.
That is for two idle cores; on a busy machine take the ratio, and `sentences_per_cpu_s`: what one core would do in a second.
"""

import json
import os
import signal
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median, quantiles
from time import monotonic
from typing import Any, Literal

from tests.benchmarks import storms_own
from tests.benchmarks._bolt_costs import costs
from tests.benchmarks._bolt_words import WORDS, words
from tests.benchmarks._measuring import Figures, run_rows
from trident.storm import LocalCluster
from trident.storm.execution.acker import Acker
from trident.storm.execution.messages import Tracking

_PENDING = 2_000  # of each spout


@dataclass(frozen=True)
class Run:
    """How to run: on which engine, for how long, how long to wait before that, and the rate of `latency`."""

    engine: str
    seconds: float
    warm_s: float
    rate: float = 1_000.0


@contextmanager
def _running(run: Run, folder: str, rate: float | None = None, **conf: Any) -> Iterator[Any]:
    conf = {"workers": 2, "user": {"notes": folder}, "drain_timeout_s": 10.0, **conf}
    builder = words(rate)
    if run.engine == "spark":
        with builder.start(conf) as running:
            yield running
        return
    with LocalCluster() as cluster:
        yield cluster.submit_topology("words", conf, builder.create_topology())


def _noted(folder: str, component: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in Path(folder).glob(f"{component}-*.json")]


def _rate(folder: str, component: str, begins: float, ends: float) -> float:
    """What all tasks of a component did per second within some time."""
    total = 0.0
    for notes in _noted(folder, component):
        within = [(at, done) for at, done in notes["noted"] if begins <= at <= ends]
        if len(within) > 1:
            (first, before), (last, after) = within[0], within[-1]
            total += (after - before) / (last - first)
    return total


def _speed(run: Run, **conf: Any) -> dict[str, float]:
    """Sentences per second, of which all words are counted; with ackers also by the spouts' acks."""
    with tempfile.TemporaryDirectory() as folder:
        with _running(run, folder, **conf) as running:
            time.sleep(run.warm_s)
            pids = {each.pid for each in running.status.workers}
            began, cpu = monotonic(), _cpu_s(pids)
            time.sleep(run.seconds)
            ended, cpu = monotonic(), _cpu_s(pids) - cpu
        latencies = [late for notes in _noted(folder, "sentences") for at, late in notes["latencies"] if at >= began]
        return {
            "sentences_per_s": _rate(folder, "count", began, ended) / WORDS,
            "acked_per_s": _rate(folder, "sentences", began, ended),
            "p50_ms": median(latencies) * 1000 if latencies else 0.0,
            "sentences_per_cpu_s": _rate(folder, "count", began, ended) / WORDS * (ended - began) / cpu,
        }


def _cpu_s(pids: set[int]) -> float:
    """The time that processes have had of the processors."""
    found = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(fields[11]) + int(fields[12]) for fields in found) / os.sysconf("SC_CLK_TCK")


def tracked(run: Run) -> dict[str, Any]:
    found = _speed(run, max_spout_pending=_PENDING)
    speed = min(found["sentences_per_s"], found["acked_per_s"])
    return {
        "ok": speed >= 25_000, "sentences_per_s": round(speed), "word_tuples_per_s": round(speed * WORDS),
        "p50_ms": round(found["p50_ms"], 1), "sentences_per_cpu_s": round(found["sentences_per_cpu_s"]),
    }  # fmt: skip


def storm(run: Run) -> dict[str, Any]:
    """Measure pairs of tracked sentences here and with Storm's own bolts, in turns; needs `make build/services/storm`."""
    pairs = [(tracked(run), storms_own.tracked(_PENDING, run.warm_s, run.seconds)) for _ in range(3)]
    ratio = median(ours["sentences_per_cpu_s"] / storms["sentences_per_cpu_s"] for ours, storms in pairs)
    return {
        "ok": ratio >= 1,
        "ratio_per_cpu_s": round(ratio, 2),
        "ratio": round(median(ours["sentences_per_s"] / storms["sentences_per_s"] for ours, storms in pairs), 2),
        "pairs_per_cpu_s": [(ours["sentences_per_cpu_s"], storms["sentences_per_cpu_s"]) for ours, storms in pairs],
    }


def untracked(run: Run) -> dict[str, Any]:
    """Measure pairs with and without ackers, in turns."""
    pairs = [(_speed(run, max_spout_pending=_PENDING), _speed(run, acker_executors=0)) for _ in range(3)]
    ratio = median(tracked["acked_per_s"] / untracked["sentences_per_s"] for tracked, untracked in pairs)
    per_cpu = median(tracked["sentences_per_cpu_s"] / untracked["sentences_per_cpu_s"] for tracked, untracked in pairs)
    return {
        "ok": ratio >= 0.5, "ratio": round(ratio, 2), "ratio_per_cpu_s": round(per_cpu, 2),
        "tracked_per_s": round(median(each["acked_per_s"] for each, _ in pairs)),
        "untracked_per_s": round(median(each["sentences_per_s"] for _, each in pairs)),
    }  # fmt: skip


def latency(run: Run) -> dict[str, Any]:
    """Measure the complete latency of so many sentences per second."""
    with tempfile.TemporaryDirectory() as folder:
        with _running(run, folder, rate=run.rate):
            time.sleep(run.warm_s)
            began = monotonic()
            time.sleep(run.seconds)
        late = [late for notes in _noted(folder, "sentences") for at, late in notes["latencies"] if at >= began]
    percentiles = quantiles(late, n=100)
    p50, p99 = percentiles[49] * 1000, percentiles[98] * 1000
    return {"ok": p50 <= 3 and p99 <= 20, "p50_ms": round(p50, 2), "p99_ms": round(p99, 2), "sentences": len(late)}


def cost(run: Run) -> dict[str, Any]:
    """Measure what a sentence costs the processor, by part, without threads."""
    with tempfile.TemporaryDirectory() as folder:
        found = costs(Path(folder), run.seconds, {"max_spout_pending": _PENDING})
    total = sum(found.values())
    parts = {part: round(each, 2) for part, each in found.items()}
    return {"ok": total <= 20, "us": round(total, 1), "us_of": parts, "sentences_per_cpu_s": round(1e6 / total)}


def memory(run: Run) -> dict[str, Any]:
    """Measure what an acker holds for a tree of which one tuple is not acked yet."""
    del run
    many, few = 100_000, 2_000
    found = {
        "roots_of_10": per_root(many, 10),
        "roots_of_10_few": per_root(few, 10),
        "roots_of_10000_few": per_root(few, 10_000),
    }
    same = abs(found["roots_of_10_few"] / found["roots_of_10000_few"] - 1) < 0.05
    return {"ok": same and max(found.values()) <= 300, "bytes": found, "roots": {"many": many, "few": few}}


def per_root(roots: int, tuples: int) -> int:
    """Bytes for each root of an acker that has taken in all news of its tree but the last."""
    random = Random(1)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    acker = Acker(lambda task, outcomes: None)
    for _ in range(roots):
        root = random.getrandbits(64)
        acker.handle(Tracking(begun=[root, random.getrandbits(64), 1]))
        for _ in range((tuples - 1) // 9):  # the acks of nine tuples are one piece of news
            acker.handle(Tracking(acked=[root, random.getrandbits(64)]))
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(acker) == roots
    return round((after - before) / roots)


def killed(run: Run) -> dict[str, Any]:
    """Kill a worker; measure until all its counts process again. In this process an exception ends it."""
    took = []
    conf = {"max_spout_pending": _PENDING, "message_timeout_s": 10.0}
    with tempfile.TemporaryDirectory() as folder, _running(run, folder, **conf) as running:
        time.sleep(run.warm_s)
        for _ in range(3):
            took.append(_kill_and_wait(run, running, Path(folder)))
            time.sleep(1)
    return {"ok": max(took) <= 10, "seconds": [round(each, 2) for each in took]}


def _kill_and_wait(run: Run, running: Any, folder: Path) -> float:
    known = set(folder.glob("first-*"))
    status = running.status
    count = status.statistics.over().components["count"].executors
    victim = count[0]
    killed_at = monotonic()
    if run.engine == "spark":
        os.kill(next(each.pid for each in status.workers if each.number == victim.worker), signal.SIGKILL)
    else:
        (folder / f"die-{victim.tasks[0]}").touch()
    wanted = {task for each in count if each.worker == victim.worker for task in each.tasks}
    while True:
        again = {int(path.name.split("-")[1]): path for path in set(folder.glob("first-*")) - known}
        if wanted <= set(again):
            return max(float(again[task].read_text() or monotonic()) for task in wanted) - killed_at
        if monotonic() - killed_at > 60:
            return float("inf")
        time.sleep(0.02)


WANTED = {
    tracked: "fully tracked: ≥ 25,000 sentences/s, 250,000 word tuples/s",
    untracked: "tracked against acker_executors=0: ≥ 0.5",
    storm: "tracked sentences for each second of a processor beside Storm's own bolts: ≥ 1",
    latency: "complete latency at 1,000 sentences/s: p50 ≤ 3 ms, p99 ≤ 20 ms",
    cost: "time of a processor for one sentence: ≤ 20 µs",
    memory: "acker memory per pending root: ≤ 300 bytes, the same for trees of 10 and of 10,000 tuples",
    killed: "a killed worker's components process again: ≤ 10 s",
}


def _row(measure: Callable[[Run], Figures], wanted: str) -> Callable[..., Figures]:
    def row(
        engine: Literal["spark", "local"] = "spark", seconds: float = 10.0, warm: float = 4.0, rate: float = 1_000.0
    ) -> Figures:
        return {"engine": engine, "wanted": wanted, **measure(Run(engine, seconds, warm, rate))}

    row.__doc__ = wanted
    return row


ROWS = {
    each.__name__: _row(each, wanted)
    for each, wanted in WANTED.items()
    if each is not storm or storms_own.JARS.exists()
}


if __name__ == "__main__":
    sys.exit(run_rows(__doc__, ROWS))
