"""Bolts and spouts that write down what happens, as records in a file; and what became of the messages, from these."""

from __future__ import annotations

import os
import struct
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trident.spout.rich import Activated
from trident.storm import BaseBasicBolt, BaseRichSpout, BasicOutputCollector, StreamDeclarer, TopologyContext, Tuple

LEAVES = 3
RECORD = struct.Struct("<IIQ")
"""The message, the leaf, nanoseconds."""


class _Record:
    def __init__(self, folder: Path, kind: str) -> None:
        self._file = os.open(folder / f"{kind}-{uuid.uuid4().hex}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, message: int, leaf: int) -> None:
        os.write(self._file, RECORD.pack(message, leaf, time.monotonic_ns()))


class _Collector:
    """Tells a spout's collector from its own which message has which id."""

    def __init__(self, collector: Any, messages: dict[Any, int]) -> None:
        self._collector, self._messages = collector, messages
        self.report_error = collector.report_error

    def emit(self, values: Any, message_id: Any = None, stream_id: str = "default") -> Any:
        self._messages[message_id] = int(values[0])
        return self._collector.emit([int(values[0])], message_id, stream_id)


class RecordedSpout(BaseRichSpout):
    """Another spout, whose acknowledgements are written down before it hears of them."""

    def __init__(self, spout: Any, folder: Path) -> None:
        self._spout, self._folder = spout, folder

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: Any) -> None:
        self._messages: dict[Any, int] = {}
        self._record = _Record(self._folder, "acks")
        self._spout.open(conf, context, _Collector(collector, self._messages))

    def next_tuple(self) -> None:
        self._spout.next_tuple()

    def ack(self, msg_id: Any) -> None:
        self._record.write(self._messages.pop(msg_id), 0)
        self._spout.ack(msg_id)

    def fail(self, msg_id: Any) -> None:
        self._spout.fail(msg_id)

    def activate(self) -> None:
        if isinstance(self._spout, Activated):
            self._spout.activate()

    def deactivate(self) -> None:
        if isinstance(self._spout, Activated):
            self._spout.deactivate()

    def close(self) -> None:
        self._spout.close()

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("message: bigint")


class SplitBolt(BaseBasicBolt):
    """One tuple for each leaf."""

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        for leaf in range(LEAVES):
            collector.emit([tuple["message"], leaf])

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("message: bigint", "leaf: int")


class LeafBolt(BaseBasicBolt):
    """Writes down each leaf; it is acknowledged afterwards."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        self._record = _Record(self._folder, "leaves")

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        self._record.write(tuple["message"], tuple["leaf"])

    def declare_output_fields(self, declarer: StreamDeclarer) -> None: ...


_TYPE = np.dtype([("message", "<u4"), ("leaf", "<u4"), ("at", "<u8")])


@dataclass(frozen=True)
class Verdict:
    """All counts are of messages, but for `executions` and `extra`, which are of leaves.

    Attributes
    ----------
    lost
        With a leaf that was never executed, or without an acknowledgement.
    early
        Acknowledged before the first execution of its last leaf.
    extra
        Executions beyond one of each leaf.
    """

    messages: int
    lost: int
    early: int
    executions: int
    extra: int
    acked_again: int


def acked(folder: Path) -> int:
    """Return how many messages have been acknowledged so far."""
    return len(np.unique(_read(folder, "acks")["message"]))


def judge(folder: Path, messages: int) -> Verdict:
    """Compare what was executed with what was acknowledged, message by message."""
    leaves, acks = _read(folder, "leaves"), _read(folder, "acks")
    first = np.full(messages * LEAVES, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(first, leaves["message"].astype(np.int64) * LEAVES + leaves["leaf"], leaves["at"])
    complete = first.reshape(messages, LEAVES).max(axis=1)
    never = complete == np.iinfo(np.uint64).max
    answered = np.zeros(messages, bool)
    answered[acks["message"]] = True
    early = np.unique(acks["message"][acks["at"] < complete[acks["message"]]])
    return Verdict(
        messages,
        int((never | ~answered).sum()),
        len(early),
        len(leaves),
        len(leaves) - messages * LEAVES,
        len(acks) - int(answered.sum()),
    )


def _read(folder: Path, kind: str) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    found = [np.fromfile(each, _TYPE) for each in folder.glob(f"{kind}-*")]
    return np.concatenate([*found, np.empty(0, _TYPE)])
