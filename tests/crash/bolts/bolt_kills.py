"""The kill campaign of spouts and bolts: `python -m tests.crash.bolts.bolt_kills redis --messages 100000 --kills 20`.

Workers (and with them their spouts, bolts and ackers), executors of Spark and the driver are killed at random moments, or
stopped for a while. At the end no message may be lost, none acknowledged before every leaf of its tree was executed, and what
was executed twice is bounded by what was pending at the kills.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.crash.bolts.queue_cases import PENDING, QUEUES, Queue
from tests.crash.bolts.recorded import LEAVES, Verdict, acked, judge
from tests.harness.commands import environment

_VICTIMS = {"worker": 12, "both workers": 2, "executor": 3, "stopped": 2, "driver": 1}
_CHUNK = 1000
_LIMIT_S = 6000.0
_START_S = 180.0
_SPOUTS = 2


@dataclass(frozen=True)
class Outcome:
    """What a campaign did and found."""

    kills: Counter[str]
    verdict: Verdict
    left: int
    seconds: float

    @property
    def bound(self) -> int:
        """How many leaves may have been executed once more: of all that was pending at each kill."""
        return sum(self.kills.values()) * _SPOUTS * PENDING * LEAVES


class _Driver:
    """The process of the driver, and those that it started."""

    def __init__(self, kind: str, queue: Queue, master: str, folder: Path) -> None:
        self._folder = folder
        self._argv = [
            sys.executable, "-m", "tests.crash.bolts.killed_driver_of_bolts", kind, queue.address, master, str(folder),
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        """Start it; return when its workers run."""
        (self._folder / "workers.json").unlink(missing_ok=True)
        with (self._folder / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._argv, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        ends = time.monotonic() + _START_S
        while not self.workers():
            assert self.process.poll() is None, (self._folder / "driver.log").read_text()[-5000:]
            assert time.monotonic() < ends, "the driver does not start"
            time.sleep(0.1)

    def workers(self) -> list[int]:
        """Return the processes of the workers that are up."""
        try:
            return [pid for pid in json.loads((self._folder / "workers.json").read_text()) if pid]
        except FileNotFoundError:
            return []

    def executors(self) -> list[psutil.Process]:
        """Return the executors of Spark."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        commands = {one: " ".join(one.as_dict(["cmdline"])["cmdline"] or []) for one in children}
        return [one for one, command in commands.items() if "CoarseGrainedExecutorBackend" in command]

    def hit(self, victim: str, chance: random.Random) -> bool:
        """Kill; whether there was anyone."""
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if victim == "driver":
                self.process.kill()
                self.process.wait()
                self.start()
                return True
            if victim == "executor":
                found = self.executors()
                if found:
                    chance.choice(found).kill()
                return bool(found)
            workers = [psutil.Process(pid) for pid in self.workers()]
            if victim == "worker":
                workers = workers and [chance.choice(workers)]
            for each in workers:
                each.send_signal(signal.SIGSTOP if victim == "stopped" else signal.SIGKILL)
            if victim == "stopped":
                time.sleep(chance.uniform(0.5, 8.0))
                for each in workers:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.send_signal(signal.SIGCONT)
            return bool(workers)
        return False

    def end(self) -> None:
        """Have it end well."""
        (self._folder / "stop").touch()
        code = self.process.wait(_START_S)
        assert code == 0, (self._folder / "driver.log").read_text()[-5000:]

    def kill(self) -> None:
        """Kill it and all that it started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        self.process.wait()


def campaign(
    kind: str,
    folder: Path,
    messages: int,
    kills: int,
    seed: int,
    master: str = "local-cluster[2,1,1024]",
    gap_s: float = 3.0,
) -> Outcome:
    """Fill a queue while a topology reads it and is killed; return what was found when all is acknowledged."""
    chance, hits, began = random.Random(seed), Counter[str](), time.monotonic()
    records = folder / "records"
    (folder / "queue").mkdir(parents=True)
    records.mkdir()
    with QUEUES[kind](folder / "queue") as queue:
        queue.add(0, 1)
        with _running(kind, queue, master, records) as driver:
            feeder = threading.Thread(target=_feed, args=(queue, messages, kills * gap_s), daemon=True)
            feeder.start()
            while sum(hits.values()) < kills:
                time.sleep(chance.expovariate(1 / gap_s))
                victim = chance.choices(list(_VICTIMS), list(_VICTIMS.values()))[0]
                hits[victim] += driver.hit(victim, chance)
            feeder.join()
            _wait(records, messages, began)
            driver.end()
        left = queue.left()
    return Outcome(hits, judge(records, messages), left, time.monotonic() - began)


@contextlib.contextmanager
def _running(kind: str, queue: Queue, master: str, folder: Path) -> Iterator[_Driver]:
    driver = _Driver(kind, queue, master, folder)
    try:
        yield driver
    finally:
        driver.kill()


def _feed(queue: Queue, messages: int, seconds: float) -> None:
    """Spread the messages over the time of the kills."""
    began = time.monotonic()
    for first in range(1, messages, _CHUNK):
        queue.add(first, min(messages, first + _CHUNK))
        ahead = began + seconds * first / messages - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)


def _wait(folder: Path, messages: int, began: float) -> None:
    while (done := acked(folder)) < messages:
        assert time.monotonic() - began < _LIMIT_S, f"{messages - done} of {messages} messages are not acknowledged"
        time.sleep(1.0)


def _main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("queue", choices=sorted(QUEUES))
    words.add_argument("--messages", type=int, default=100_000)
    words.add_argument("--kills", type=int, default=20)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--master", default="local-cluster[2,1,1024]")
    words.add_argument("--gap", type=float, default=3.0)
    asked = words.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(asked.queue, Path(folder), asked.messages, asked.kills, asked.seed, asked.master, asked.gap)
    sys.stdout.write(f"{asked.queue}: {found}, at most {found.bound} leaves twice\n")
    wrong = found.verdict.lost or found.verdict.early or found.left or found.verdict.extra > found.bound
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    _main()
