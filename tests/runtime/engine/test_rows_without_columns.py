"""A step that only counts needs no column of its rows: however they are put together, none of them is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import start
from trident import Stream, TridentTopology
from trident.operations import Count, Split, Sum

Ways = Callable[[TridentTopology, Stream], Stream]

WAYS: dict[str, tuple[Ways, int]] = {
    "merged with itself": (lambda t, words: t.merge(words.project("word"), words.project("word")), 8),
    "merged behind a partitioning": (
        lambda t, words: t.merge(words.partition_by("word").project("word"), words.project("word")), 8,
    ),
    "shuffled": (lambda t, words: words.shuffle(), 4),
    "in one partition": (lambda t, words: words.global_(), 4),
    "filtered": (lambda t, words: words.partition_by("word").filter("word", lambda word: True), 4),
    "merged, then shuffled": (lambda t, words: t.merge(words, words).shuffle(), 8),
}  # fmt: skip


@pytest.mark.sample(4)
@pytest.mark.parametrize("way", WAYS)
def test_every_row_is_counted(way: str, engine: str) -> None:
    make, expected = WAYS[way]
    topology = TridentTopology("counted")
    lines = topology.new_stream("lines", FixedBatchSpout("line: string", 2, ["the cow"], ["the dog"]))
    counted = make(topology, lines.each("line", Split(), "word: string")).aggregate(Count(), "c")
    total = counted.persistent_aggregate(MemoryMapState(), "c", Sum(), "total", state_name="total")
    with start(topology, engine) as running:
        running.process_all_available()
        assert running.state(total).get() == expected
