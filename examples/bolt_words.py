"""Word count with spouts and bolts: each line is a message of its own.

A line is acknowledged when all its words are counted::

    python examples/bolt_words.py              # in this process
    python examples/bolt_words.py --spark      # two workers on Spark
    python examples/bolt_words.py moby.txt     # your own text

The counts are in the memory of a bolt, at least once: a line that was replayed counts twice. For exact counts see
`word_count.py`.
"""

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trident.storm import (
    BaseBasicBolt,
    BaseRichSpout,
    BasicOutputCollector,
    LocalCluster,
    SpoutOutputCollector,
    StreamDeclarer,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)

TEXT = """hey diddle diddle
the cat and the fiddle
the cow jumped over the moon
the little dog laughed to see such sport
and the dish ran away with the spoon
"""


class Lines(BaseRichSpout):
    """Emits each line of a text until it is acknowledged. Each task has its share of the lines."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        """Declare the line."""
        declarer.declare("line: string")

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Begin with all lines of this task."""
        self.collector = collector
        self.waiting = list(range(context.task, len(self.lines), context.tasks))

    def next_tuple(self) -> None:
        """Emit the next line; its number is its message id."""
        if self.waiting:
            number = self.waiting.pop()
            self.collector.emit([self.lines[number]], number)

    def fail(self, msg_id: int) -> None:
        """Emit the line again, later."""
        self.waiting.append(msg_id)


class Split(BaseBasicBolt):
    """Emits each word of a line."""

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        """Declare the word."""
        declarer.declare("word: string")

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        """Emit the words; they are anchored to the line, which is acked after the last."""
        for word in tuple["line"].split():
            collector.emit([word])


class CountWords(BaseBasicBolt):
    """Counts in memory, and writes the counts when the topology ends. `fields_grouping` gives it all of a word."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Begin with no counts."""
        self.counts: Counter[str] = Counter()
        self.file = Path(conf["counts_dir"], f"{context.task_id}.json")

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        """Count one word."""
        self.counts[tuple["word"]] += 1

    def cleanup(self) -> None:
        """Write what was counted."""
        self.file.write_text(json.dumps(self.counts))


def words(text: str) -> TopologyBuilder:
    """Return the declared topology."""
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines(text))
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("count", CountWords(), 2).fields_grouping("split", "word")
    return builder


def main(*args: str) -> None:
    """Count a text, and print the five most frequent words."""
    files = [Path(arg).read_text() for arg in args if not arg.startswith("-")]
    text = files[0] if files else TEXT
    with tempfile.TemporaryDirectory() as folder:
        conf = {"name": "words", "workers": 2, "user": {"counts_dir": folder}}
        running = (
            words(text).start(conf)
            if "--spark" in args
            else LocalCluster().submit_topology("words", conf, words(text).create_topology())
        )
        while running.status.statistics.over().figures.acked < len(text.splitlines()):
            time.sleep(0.05)
        running.stop()
        counts: Counter[str] = Counter()
        for part in Path(folder).glob("*.json"):
            counts.update(json.loads(part.read_text()))
    for word, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:5]:
        print(f"{word}: {count}")


if __name__ == "__main__":
    main(*sys.argv[1:])
