"""What is passed on of what Spark's JVM prints: all but the traces of workers whose pipe broke."""

from __future__ import annotations

import os
import threading

import pytest

from trident.spark.session import BrokenPipes, JvmOutput

WORKER = b"""Traceback (most recent call last):
  File "/venv/lib/pyspark/python/lib/pyspark.zip/pyspark/daemon.py", line 262, in manager
  File "/venv/lib/pyspark/python/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
"""
FLUSH = b"""PySpark daemon failed to flush the output to the worker process:
Traceback (most recent call last):
  File "/venv/lib/pyspark/python/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker
    outfile.flush()
ConnectionResetError: [Errno 104] Connection reset by peer

During handling of the above exception, another exception occurred:

"""
USERS = b"""Traceback (most recent call last):
  File "/venv/lib/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line 9, in main
  File "job.py", line 7, in send
BrokenPipeError: [Errno 32] Broken pipe
"""
OTHER = WORKER.replace(b"BrokenPipeError", b"ValueError")


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_traces_of_broken_pipes_are_left_out_however_they_come(size: int) -> None:
    said = b"one\n" + WORKER + b"two\n\n" + FLUSH + WORKER + USERS + OTHER + b"three\n" + WORKER + b"four"
    shown = BrokenPipes()
    pieces = b"".join(shown(said[at : at + size]) for at in range(0, len(said), size))
    assert pieces + shown.end() == b"one\ntwo\n\n" + USERS + OTHER + b"three\nfour"


def test_a_line_without_an_end_is_shown_at_once_and_half_a_trace_at_the_end() -> None:
    shown = BrokenPipes()
    assert shown(b"50 %") == b"50 %"
    assert shown(b" 60 %\nTrace") == b" 60 %\n"
    assert shown(b"d\n" + WORKER[:80]) == b"Traced\n"
    assert shown.end() == WORKER[:80]


def test_what_the_jvm_prints_is_passed_on_without_such_traces(capfd: pytest.CaptureFixture[str]) -> None:
    others = set(threading.enumerate())
    output = JvmOutput()
    (reader,) = set(threading.enumerate()) - others
    end = os.dup(output.write_end)
    output.release()
    os.write(end, b"one\n" + WORKER + b"two\n" + WORKER[:60])
    os.close(end)
    reader.join(10)
    assert capfd.readouterr().err == "one\ntwo\n" + WORKER[:60].decode()
