"""Tasks are killed at random moments while they process many messages: none is lost, and few come twice.

`MESSAGES` and `KILLS` set how many, for each queue. The oracle is outside of the spouts: a file with a line for each
message that was processed, and the queue's own count of what is left.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from tests.harness.forked import ROOT, command_of
from tests.spouts.driving import Task
from tests.spouts.places import Place

MESSAGES, KILLS = int(os.environ.get("MESSAGES", "20000")), int(os.environ.get("KILLS", "10"))
PENDING, TASKS, _QUIET_S = 500, 2, 60.0


class Tasks:
    """The processes; a killed one is started again."""

    def __init__(self, spout: Path, out: Path) -> None:
        self._spout, self._out, self._seeds = spout, out, iter(range(1 << 30))
        self._running = [self._start(task) for task in range(TASKS)]

    def _start(self, task: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command_of(run_task, self._spout, task, TASKS, self._out, next(self._seeds)), cwd=ROOT)

    def kill(self, task: int) -> None:
        self._running[task].kill()
        self._running[task].wait()
        self._running[task] = self._start(task)

    def check(self) -> None:
        assert all(each.poll() is None for each in self._running), "a task ended by itself"

    def stop(self) -> None:
        for each in self._running:
            each.kill()
            each.wait()


@contextlib.contextmanager
def _running(spout: Path, out: Path) -> Iterator[Tasks]:
    tasks = Tasks(spout, out)
    try:
        yield tasks
    finally:
        tasks.stop()


def _size(out: Path) -> int:
    return out.stat().st_size if out.exists() else 0


def _processed(out: Path) -> Counter[int]:
    return Counter(map(int, out.read_text(encoding="utf-8").split()))


def _wait_for_the_end(place: Place, out: Path, tasks: Tasks) -> None:
    """Return when each message was processed and the queue has none left, or when nothing has happened for long."""
    size, since = -1, time.monotonic()
    while len(_processed(out)) < MESSAGES or place.left():
        tasks.check()
        if (found := _size(out)) != size:
            size, since = found, time.monotonic()
        if time.monotonic() - since > _QUIET_S:
            return
        time.sleep(0.5)  # between two looks


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_no_message_is_lost_and_few_come_twice(place: Place, tmp_path: Path) -> None:
    place.spread(TASKS)
    place.fill(range(MESSAGES))
    spout, out = tmp_path / "spout", tmp_path / "out"
    spout.write_bytes(cloudpickle.dumps(place.spout(max_pending=PENDING, first_pause_s=0.05, **place.for_kills)))
    size = sum(len(str(number)) + 1 for number in range(MESSAGES))
    choose, began = random.Random(1), time.monotonic()
    with _running(spout, out) as tasks:
        for kill in range(KILLS):
            due = size * (kill + choose.random()) / (KILLS + 1)
            while _size(out) < due:
                tasks.check()
                time.sleep(0.01)  # between two looks
            tasks.kill(choose.randrange(TASKS))
        _wait_for_the_end(place, out, tasks)
    counts = _processed(out)
    twice = counts.total() - len(counts)
    sys.stderr.write(
        f"\n{type(place).__name__}: {MESSAGES} messages, {KILLS} kills, {MESSAGES - len(counts)} lost, {twice} came again, "
        f"at most {max(counts.values())} times, {time.monotonic() - began:.0f} s\n"
    )
    assert set(counts) == set(range(MESSAGES)), "lost"
    assert place.left() == 0
    assert twice <= KILLS * place.at_risk(PENDING)


def run_task(spout: Path, task: int, tasks: int, file: Path, seed: int) -> None:
    """Run a task until it is killed: a line of `file` for each message, written before its acknowledgement.

    Answers come in any order; one of a hundred messages fails first.
    """
    choose = random.Random(seed)
    running = Task(pickle.loads(spout.read_bytes()), task, tasks)
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    under_way: list[tuple[tuple[Any, ...], Any]] = []
    while True:
        running.spout.next_tuple()
        under_way += running.collector.emitted
        is_quiet = not running.collector.emitted
        running.collector.emitted.clear()
        while len(under_way) > (0 if is_quiet else 50):
            at = choose.randrange(len(under_way))
            under_way[at], under_way[-1] = under_way[-1], under_way[at]
            values, id_ = under_way.pop()
            if choose.random() < 0.01:
                running.spout.fail(id_)
            else:
                os.write(out, b"%d\n" % values[1])
                running.spout.ack(id_)
