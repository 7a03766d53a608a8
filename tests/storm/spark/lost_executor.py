"""Run by test_lost_executor.py on a cluster of two executors, one of which is killed."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from tests.crash.executors import executors
from tests.harness.commands import until
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


if __name__ == "__main__":
    main()
