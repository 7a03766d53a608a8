"""A topology on Spark over each queue, while its workers (spouts, bolts, ackers) and its driver are killed at random.

`MESSAGES` and `KILLS` set how many. The oracle is outside: a file with each leaf that was executed and each message that was
acknowledged, in order, and the queue's own count of what is left.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import cloudpickle
import psutil
import pytest

from tests.spouts.messages.driving import Task
from tests.spouts.messages.places import Place
from tests.spouts.messages.spark_queue import LEAVES

MESSAGES, KILLS = int(os.environ.get("MESSAGES", "20000")), int(os.environ.get("KILLS", "10"))
PENDING, _QUIET_S = 500, 90.0


class Driver:
    """The driver's process; a killed one is started again."""

    def __init__(self, folder: Path) -> None:
        self._words = [str(folder / name) for name in ("spout", "journal", "workers")]
        self.workers = folder / "workers"
        self._log = (folder / "driver.log").open("ab")
        self.start()

    def start(self) -> None:
        argv = [sys.executable, "-m", "tests.spouts.messages.spark_queue", *self._words]
        self.process = subprocess.Popen(argv, stdout=self._log, stderr=self._log, start_new_session=True)

    def kill(self) -> None:
        """Kill the driver alone: its JVM and its workers have to notice by themselves."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        psutil.wait_procs(children, 30)
        self.workers.unlink(missing_ok=True)

    def kill_worker(self, choose: random.Random) -> bool:
        """Kill a worker, if one is up."""
        pids = self.workers.read_text(encoding="utf-8").split() if self.workers.exists() else []
        if not pids:
            return False
        try:
            os.kill(int(choose.choice(pids)), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        self.kill()
        self._log.close()


def _check(journal: Path) -> tuple[Counter[int], int]:
    """Check that no message was acknowledged before all of its leaves; return how often each was, and the extra leaves."""
    leaves: dict[int, set[str]] = defaultdict(set)
    acked: Counter[int] = Counter()
    extra = 0
    for line in journal.read_text(encoding="utf-8").splitlines():
        kind, number, *leaf = line.split()
        if kind == "L":
            extra += leaf[0] in leaves[int(number)]
            leaves[int(number)].update(leaf)
        else:
            assert len(leaves[int(number)]) == LEAVES, f"{number} was acknowledged before its tree was complete"
            acked[int(number)] += 1
    return acked, extra


def _size(journal: Path) -> int:
    return journal.stat().st_size if journal.exists() else 0


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(7200)
def test_no_message_is_lost_or_acked_early(place: Place, tmp_path: Path) -> None:
    place.spread(2)
    place.fill(range(MESSAGES))
    (tmp_path / "spout").write_bytes(
        cloudpickle.dumps(place.spout(max_pending=PENDING, first_pause_s=0.05, **place.for_kills))
    )
    journal, choose, began = tmp_path / "journal", random.Random(1), time.monotonic()
    size = sum((LEAVES + 1) * (len(str(number)) + 3) + 2 * LEAVES for number in range(MESSAGES))
    driver, drivers = Driver(tmp_path), 0
    try:
        for kill in range(KILLS):
            due = size * (kill + choose.random()) / (KILLS + 1)
            while _size(journal) < due:
                assert driver.process.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
                time.sleep(0.01)  # between two looks
            if kill % 10 == 9:
                driver.kill()
                driver.start()
                drivers += 1
            else:
                while not driver.kill_worker(choose):
                    time.sleep(0.05)  # until one is up
        _wait_for_the_end(place, journal)
    finally:
        driver.close()
    acked, extra = _check(journal)
    sys.stderr.write(
        f"\n{type(place).__name__} on Spark: {MESSAGES} messages, {KILLS} kills ({drivers} of the driver), "
        f"{MESSAGES - len(acked)} lost, {acked.total() - len(acked)} acknowledged again, {extra} leaves executed again of "
        f"{LEAVES * MESSAGES}, {time.monotonic() - began:.0f} s\n"
    )
    assert set(acked) == set(range(MESSAGES)), "lost"
    last = Task(place.spout())
    last.drain(lambda: place.left() == 0 and not last.spout.pending)
    last.close()


def _wait_for_the_end(place: Place, journal: Path) -> None:
    """Return when nothing is left, and nothing has happened for a while."""
    size, since = -1, time.monotonic()
    while time.monotonic() - since < _QUIET_S:
        if (found := _size(journal)) != size:
            size, since = found, time.monotonic()
        elif place.left() == 0 and time.monotonic() - since > 15:  # three times the message timeout
            return
        time.sleep(0.5)  # between two looks
