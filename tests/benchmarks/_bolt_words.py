"""The topology that `bolts.py` measures: sentences of ten words → split → count. Its tasks write down what they see."""

import json
import os
from collections.abc import Mapping
from itertools import count, islice
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from trident.storm import (
    BaseRichBolt,
    BaseRichSpout,
    OutputCollector,
    SpoutOutputCollector,
    StormTopology,
    StreamDeclarer,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)

WORDS = 10  # of a sentence
_NOTED = 1 << 8  # calls between two notes of the time
_VOCABULARY = 5_000
_SENTENCES = 2_000


def words(rate: float | None = None, spouts: int = 2, bolts: int = 2) -> TopologyBuilder:
    """Return the topology: at most `rate` sentences per second of all spouts together, or as many as there is room for."""
    builder = TopologyBuilder()
    builder.set_spout("sentences", Sentences(rate and rate / spouts), spouts)
    builder.set_bolt("split", Split(), bolts).shuffle_grouping("sentences")
    builder.set_bolt("count", CountWords(), bolts).fields_grouping("split", "word")
    return builder


class _Notes:
    """When how much was done, by one task; written to a file at the end."""

    def __init__(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        self._file = Path(conf["notes"], f"{context.component}-{context.task_id}-{os.getpid()}-{monotonic()}.json")
        self.noted: list[tuple[float, int]] = []
        self.latencies: list[tuple[float, float]] = []

    def write(self) -> None:
        self._file.write_text(json.dumps({"noted": self.noted, "latencies": self.latencies}))


class Sentences(BaseRichSpout):
    """Sentences without end. The message id is the moment of the emit."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("sentence: string")

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        random = Random(context.task_id)
        self.collector = collector
        drawn = (f"word{random.randrange(_VOCABULARY)}" for _ in range(_SENTENCES * WORDS))
        self.sentences = [" ".join(islice(drawn, WORDS)) for _ in range(_SENTENCES)]
        self.at = self.acked = 0
        self.due = monotonic()
        self.notes = _Notes(conf, context)

    def next_tuple(self) -> None:
        now = monotonic()
        if self.rate is not None:
            if now < self.due:
                return
            self.due += 1 / self.rate
        self.at = (self.at + 1) % _SENTENCES
        self.collector.emit([self.sentences[self.at]], now)

    def ack(self, msg_id: float) -> None:
        self.acked += 1
        if self.rate is not None:
            now = monotonic()
            self.notes.latencies.append((now, now - msg_id))
        elif not self.acked % _NOTED:
            now = monotonic()
            self.notes.noted.append((now, self.acked))
            self.notes.latencies.append((now, now - msg_id))

    def close(self) -> None:
        self.notes.write()


class Split(BaseRichBolt):
    """Each word, anchored to its sentence."""

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("word: string")

    def execute(self, tuple: Tuple) -> None:
        emit = self.collector.emit
        for word in tuple.values[0].split():
            emit((word,), tuple)
        self.collector.ack(tuple)


class CountWords(BaseRichBolt):
    """Counts in memory. Notes its first tuple in a file at once, so that it is known when a task processes again."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(conf, context, collector)
        self.counts: dict[str, int] = {}
        self.executed = count(1).__next__
        self.notes = _Notes(conf, context)
        self.first = Path(conf["notes"], f"first-{context.task_id}-{context.worker}-{monotonic()}")
        self.die = Path(conf["notes"], f"die-{context.task_id}")

    def execute(self, tuple: Tuple) -> None:
        counts, word = self.counts, tuple.values[0]
        counts[word] = counts.get(word, 0) + 1
        self.collector.ack(tuple)
        executed = self.executed()
        if executed == 1:
            self.first.write_text(str(monotonic()))
        if not executed % _NOTED:
            self.notes.noted.append((monotonic(), executed))
            if self.die.exists():
                self.die.unlink()
                raise ValueError("told to die")

    def cleanup(self) -> None:
        self.notes.write()


def topology() -> StormTopology:
    """Return the topology as data."""
    return words().create_topology()
