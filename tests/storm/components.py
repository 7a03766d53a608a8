"""Spouts and bolts that the tests share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trident.storm import (
    BaseBasicBolt,
    BaseRichBolt,
    BasicOutputCollector,
    OutputCollector,
    StormTopology,
    StreamDeclarer,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from trident.storm.testing import MockedSpout

SENTENCES = (["the cow jumped over the moon"], ["an apple a day"], ["the moon"], [""])


class Split(BaseRichBolt):
    """A rich bolt: anchors each word to its sentence."""

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("word: string")

    def execute(self, tuple: Tuple) -> None:
        for word in tuple["sentence"].split():
            self.collector.emit([word], tuple)
        self.collector.ack(tuple)


class BasicSplit(BaseBasicBolt):
    """The same as a basic bolt."""

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("word: string")

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        for word in tuple["sentence"].split():
            collector.emit([word])


class Count(BaseRichBolt):
    """Counts in memory, and emits each new count."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(conf, context, collector)
        self.counts: dict[str, int] = {}

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("word: string", "count: bigint")

    def execute(self, tuple: Tuple) -> None:
        word = tuple["word"]
        self.counts[word] = self.counts.get(word, 0) + 1
        self.collector.emit([word, self.counts[word]], tuple)
        self.collector.ack(tuple)


def word_count(split: Any = None, splits: int = 2, counts: int = 3) -> StormTopology:
    """Sentences → split (shuffle) → count (fields)."""
    builder = TopologyBuilder()
    builder.set_spout("sentences", MockedSpout("sentence: string", *SENTENCES))
    builder.set_bolt("split", split or Split(), splits).shuffle_grouping("sentences")
    builder.set_bolt("count", Count(), counts).fields_grouping("split", "word")
    return builder.create_topology()
