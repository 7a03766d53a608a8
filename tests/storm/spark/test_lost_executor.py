"""Executors of a cluster that die. As a program: bolts on a cluster of two executors, one of which is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.crash.executors import executors
from tests.harness.commands import environment, until
from tests.harness.quick_java import QUICK_JVM
from tests.storm.spark.journaled import Journal, pids, settings, word_count

MESSAGES = 3000
SPARK = {"spark.executor.extraJavaOptions": QUICK_JVM}


def main() -> None:
    journal = Journal(Path("journal").absolute())
    with word_count(journal, MESSAGES).start(settings(master="local-cluster[2,1,1024]", spark_conf=SPARK)) as running:
        until(lambda: len(journal.acked()) > 200, "it is in the middle")
        before = pids(running)
        executors()[0].send_signal(signal.SIGKILL)
        until(lambda: set(before) - set(pids(running)) and all(pids(running)), "the death is seen")
        began = time.monotonic()
        until(lambda: all(each["state"] == "running" for each in running.workers), "it is back")
        sys.stdout.write(f"back after {time.monotonic() - began:.1f} s\n")
        until(lambda: len(journal.acked()) == MESSAGES, "all messages are acknowledged")
        assert len(set(before) - set(pids(running))) == 1
        assert running.deaths == 1
    sys.stdout.write(f"replayed {len(journal.check(MESSAGES))}\n")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.long
def test_nothing_is_lost_when_an_executor_is_killed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "back after" in done.stdout


if __name__ == "__main__":
    main()
