"""A queue, a spout and bolts that write what happens to one file, in the order in which it happens.

The file is the oracle: `L id word` for each word that was counted, `A id` for each message that was acknowledged.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trident.storm import (
    BaseRichBolt,
    BaseRichSpout,
    SpoutOutputCollector,
    StormConfig,
    StreamDeclarer,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)

if TYPE_CHECKING:
    from trident.storm.spark.running_storm import RunningStormTopology

WORDS = 5


def words_of(message: int) -> list[str]:
    return [f"word{(message * 7 + at) % 50}" for at in range(WORDS)]


class Journal:
    """Lines that several processes append to one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{line}\n")  # one write, which O_APPEND puts behind all others

    def lines(self) -> list[list[str]]:
        whole, _, _unfinished = (self.path.read_text() if self.path.exists() else "").rpartition("\n")
        return [line.split() for line in whole.splitlines()]

    def acked(self) -> set[int]:
        return {int(line[1]) for line in self.lines() if line[0] == "A"}

    def pids(self) -> set[int]:
        return {int(line[2]) for line in self.lines() if line[0] == "O"}

    def check(self, messages: int) -> Counter[int]:
        """Check that nothing is lost, and nothing was acknowledged before its last word; return the extra executions."""
        executed: Counter[tuple[int, str]] = Counter()
        extra: Counter[int] = Counter()
        for line in self.lines():
            if line[0] == "L":
                executed[int(line[1]), line[2]] += 1
            elif line[0] == "A":
                missing = [word for word in words_of(int(line[1])) if not executed[int(line[1]), word]]
                assert not missing, f"message {line[1]} was acknowledged before {missing}"
        assert self.acked() == set(range(messages))
        for (message, _), times in executed.items():
            extra[message] += times - 1
        return +extra


class QueueSpout(BaseRichSpout):
    """Emits the messages that the journal has not as acknowledged; failed ones again."""

    def __init__(self, journal: Journal, messages: int, pending: int = 100) -> None:
        self.journal, self.messages, self.at_once = journal, messages, pending

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        self.collector = collector
        acked = self.journal.acked()
        self.waiting = [
            each for each in range(self.messages) if each not in acked and each % context.tasks == context.task
        ]
        self.waiting.reverse()
        self.journal.write(f"O {context.component} {os.getpid()}")

    def next_tuple(self) -> None:
        if self.waiting:
            message = self.waiting.pop()
            self.collector.emit([message, " ".join(words_of(message))], message)

    def ack(self, msg_id: Any) -> None:
        self.journal.write(f"A {msg_id}")

    def fail(self, msg_id: Any) -> None:
        self.waiting.append(msg_id)

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("id: int", "sentence: string")


class SplitBolt(BaseRichBolt):
    """Emits each word, anchored."""

    def execute(self, tuple: Tuple) -> None:
        for word in tuple["sentence"].split():
            self.collector.emit([tuple["id"], word], tuple)
        self.collector.ack(tuple)

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("id: int", "word: string")


class CountBolt(BaseRichBolt):
    """Writes each word down, then acks."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext, collector: Any) -> None:
        super().prepare(conf, context, collector)
        self.journal.write(f"O {context.component} {os.getpid()}")

    def execute(self, tuple: Tuple) -> None:
        self.journal.write(f"L {tuple['id']} {tuple['word']}")
        self.collector.ack(tuple)


def word_count(journal: Journal, messages: int, spouts: int = 1, counts: int = 2) -> TopologyBuilder:
    builder = TopologyBuilder()
    builder.set_spout("sentences", QueueSpout(journal, messages), spouts)
    builder.set_bolt("split", SplitBolt(), 1).shuffle_grouping("sentences")
    builder.set_bolt("count", CountBolt(journal), 1).set_num_tasks(counts).fields_grouping("split", "word")
    return builder


SETTINGS: dict[str, Any] = {"workers": 2, "max_spout_pending": 100, "message_timeout_s": 2.0}


def settings(**changes: Any) -> StormConfig:
    return StormConfig.of({**SETTINGS, "name": "words", **changes})


def pids(running: RunningStormTopology) -> Sequence[int]:
    return [each["pid"] for each in running.workers]
