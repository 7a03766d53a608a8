"""A topology on Spark over a queue, which writes what happens to one file; `test_spark_queue_kills.py` kills its processes.

`python -m tests.spouts.messages.spark_queue SPOUT JOURNAL WORKERS`: the journal gets `L n leaf` for each leaf of message n
that was executed, and `A n` before n is acknowledged at its queue; in the order in which it happens. `WORKERS` gets the ids
of the worker processes.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trident.storm import BaseRichBolt, BaseRichSpout, StreamDeclarer, TopologyBuilder, TopologyContext, Tuple

__all__ = ["LEAVES"]

LEAVES = 3


class _Journal:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, line: str) -> None:
        os.write(self._file, line.encode())  # one call, which O_APPEND makes whole


class Watched(BaseRichSpout):
    """A spout whose acknowledgements are written down before its queue hears of them."""

    def __init__(self, spout: Any, path: str) -> None:
        self._spout, self._path = spout, path

    def declare_output_fields(self, declarer: Any) -> None:
        self._spout.declare_output_fields(declarer)

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: Any) -> None:
        self._journal, self._collector = _Journal(self._path), collector
        self._numbers: dict[Any, int] = {}
        self.report_error = collector.report_error
        self._spout.open(conf, context, self)

    def emit(self, values: Any, message_id: Any = None, stream_id: str = "default") -> Any:
        self._numbers[message_id] = values[1]
        return self._collector.emit(values, message_id, stream_id)

    def next_tuple(self) -> None:
        self._spout.next_tuple()

    def ack(self, msg_id: Any) -> None:
        self._journal.write(f"A {self._numbers.pop(msg_id)}\n")
        self._spout.ack(msg_id)

    def fail(self, msg_id: Any) -> None:
        self._spout.fail(msg_id)

    def activate(self) -> None:
        self._spout.activate()

    def deactivate(self) -> None:
        self._spout.deactivate()

    def close(self) -> None:
        self._spout.close()


class Branch(BaseRichBolt):
    """Emits the leaves of a message."""

    def execute(self, tuple: Tuple) -> None:
        for leaf in range(LEAVES):
            self.collector.emit([tuple["n"], leaf], tuple)
        self.collector.ack(tuple)

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("n: bigint, leaf: bigint")


class Leaf(BaseRichBolt):
    """Writes each leaf down, then acknowledges it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext, collector: Any) -> None:
        super().prepare(conf, context, collector)
        self._journal = _Journal(self._path)

    def execute(self, tuple: Tuple) -> None:
        self._journal.write(f"L {tuple['n']} {tuple['leaf']}\n")
        self.collector.ack(tuple)


def main(spout: str, journal: str, workers: str) -> None:
    """Run until killed."""
    builder = TopologyBuilder()
    builder.set_spout("queue", Watched(pickle.loads(Path(spout).read_bytes()), journal), 2)
    builder.set_bolt("branch", Branch(), 2).shuffle_grouping("queue")
    builder.set_bolt("leaf", Leaf(journal), 2).fields_grouping("branch", "n, leaf")
    conf: dict[str, Any] = {"workers": 3, "message_timeout_s": 5.0, "max_worker_deaths": 1_000_000}
    with builder.start(conf) as running:
        while True:
            text = " ".join(str(each["pid"]) for each in running.workers if each["state"] == "running" and each["pid"])
            Path(workers).with_suffix(".part").write_text(text, encoding="utf-8")
            Path(workers).with_suffix(".part").replace(workers)
            time.sleep(0.1)  # between two reports to the test


if __name__ == "__main__":
    main(*sys.argv[1:])
