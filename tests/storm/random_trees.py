"""Spouts and bolts that the tests share, and random topologies that note every execution of every tuple."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from trident.storm import (
    BaseBasicBolt,
    BaseRichBolt,
    BasicOutputCollector,
    OutputCollector,
    SpoutOutputCollector,
    StormTopology,
    StreamDeclarer,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from trident.storm.testing import MockedSpout

MESSAGES = 6
Copy = tuple[int, int]
"""The number of a tuple, and the task that gets this copy of it."""


@dataclass
class Execution:
    """One execution of a copy: whether it was acked, and the copies of the tuples that were anchored to it."""

    acked: bool = False
    children: list[Copy] = field(default_factory=list)


class Ledger:
    """Everything that happened since `clear`; one for all tasks, which run in one process."""

    executions: dict[Copy, list[Execution]]
    emissions: dict[int, list[list[Copy]]]
    numbers: int

    @classmethod
    def clear(cls) -> None:
        cls.executions, cls.emissions, cls.numbers = {}, {}, 0

    @classmethod
    def number(cls) -> int:
        cls.numbers += 1
        return cls.numbers

    @classmethod
    def whole(cls, message: int) -> bool:
        """Whether all copies of one emission of a message, and all that was anchored to them, were executed and acked."""
        return any(all(map(cls._whole, copies)) for copies in cls.emissions[message])

    @classmethod
    def _whole(cls, copy: Copy) -> bool:
        return any(each.acked and all(map(cls._whole, each.children)) for each in cls.executions.get(copy, ()))


class Messages(MockedSpout):
    """Emits messages by their numbers; notes which were acknowledged although their tree was not whole."""

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        super().open(conf, context, collector)
        self.early: list[int] = []

    def next_tuple(self) -> None:
        if self._waiting:
            at, number = self._waiting.popleft(), Ledger.number()
            tasks = self._collector.emit([number], at)
            Ledger.emissions.setdefault(at, []).append([(number, task) for task in tasks])

    def ack(self, msg_id: Any) -> None:
        super().ack(msg_id)
        if not Ledger.whole(msg_id):
            self.early.append(msg_id)


class Fan(BaseRichBolt):
    """Emits up to `width` tuples, each anchored to some of those that it holds; then acks these in any order.

    It holds up to `holds` tuples back before it does so.
    """

    def __init__(self, width: int, holds: int, seed: int) -> None:
        self.width, self.holds, self.seed = width, holds, seed

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("number")

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(conf, context, collector)
        self.task = context.task_id
        self.random = Random(self.seed * 1000 + self.task)
        self.held: list[tuple[Tuple, Execution]] = []

    def execute(self, tuple: Tuple) -> None:
        execution = Execution()
        Ledger.executions.setdefault((tuple["number"], self.task), []).append(execution)
        self.held.append((tuple, execution))
        if len(self.held) > self.holds:
            self.answer()

    def answer(self) -> None:
        for _ in range(self.random.randint(0, self.width)):
            anchors = self.random.sample(self.held, self.random.randint(1, len(self.held)))
            number = Ledger.number()
            tuples = [each for each, _ in anchors]
            tasks = self.collector.emit([number], tuples if len(tuples) > 1 else tuples[0])
            for _, execution in anchors:
                execution.children += [(number, task) for task in tasks]
        self.random.shuffle(self.held)
        for each, execution in self.held:
            execution.acked = True
            self.collector.ack(each)
        self.held = []


def random_topology(random: Random, holds: int) -> StormTopology:
    """Return up to four bolts, each of which reads some of those before it, in random groupings."""
    builder = TopologyBuilder()
    spout = Messages("number", *[[n] for n in range(MESSAGES)])
    builder.set_spout("spout", spout, random.randint(1, 2))
    before = ["spout"]
    for at in range(random.randint(1, 4)):
        tasks = random.randint(1, 3)
        bolt = builder.set_bolt(f"bolt{at}", Fan(random.randint(0, 3), holds, random.randint(0, 99)), tasks)
        for source in random.sample(before, random.randint(1, len(before))):
            groupings = [bolt.shuffle_grouping, bolt.global_grouping, bolt.local_or_shuffle_grouping, bolt.all_grouping]
            random.choice(groupings)(source)
        before.append(f"bolt{at}")
    return builder.create_topology()


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


def chain(**components: Any) -> StormTopology:
    """Return a topology of a spout, and of bolts that each read the one before (shuffle)."""
    builder = TopologyBuilder()
    names = list(components)
    builder.set_spout(names[0], components[names[0]])
    for before, name in pairwise(names):
        builder.set_bolt(name, components[name]).shuffle_grouping(before)
    return builder.create_topology()
