"""The promise of the ackers: the word count of Storm's documentation, and random topologies, orders, losses and doubles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storm.components import SENTENCES, BasicSplit, Split, word_count
from tests.storm.random_trees import MESSAGES, Ledger, Messages, random_topology
from trident.storm.execution.collectors import BoltCollector
from trident.storm.execution.messages import Body, Outbox
from trident.storm.storm_tuples import Tuple
from trident.storm.testing import SteppedCluster, complete_topology

SEEDS = st.integers(0, 1 << 32)
WORDS = Counter(word for (sentence,) in SENTENCES for word in sentence.split())


@pytest.mark.parametrize("split", [Split(), BasicSplit()])
@pytest.mark.parametrize("ackers", [0, 1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_every_word_is_counted_and_every_sentence_acked(split: Any, ackers: int, seed: int) -> None:
    done = complete_topology(word_count(split), {"sentences": SENTENCES}, acker_executors=ackers, seed=seed)
    assert Counter(word for (word,) in done.tuples("split")) == WORDS
    assert {word: max(n for w, n in done.tuples("count") if w == word) for word in WORDS} == WORDS
    assert (done.acked["sentences"], done.failed["sentences"], done.errors) == ([0, 1, 2, 3], [], ())


class Run:
    """A random topology on a link that loses and doubles deliveries, and what became of its messages."""

    def __init__(self, seed: int, *, holds: int = 0, losses: float = 0.0, doubles: float = 0.0) -> None:
        Ledger.clear()
        self.random = Random(seed)
        self.losses, self.doubles = losses, doubles
        topology = random_topology(self.random, holds)
        self.cluster = SteppedCluster(topology, seed=seed, link=self.link, acker_executors=self.random.randint(1, 3))

    def link(self, task: int, body: Body) -> Sequence[Body]:
        if self.random.random() < self.losses:
            return []
        return [body] * (2 if self.random.random() < self.doubles else 1)

    def time_out(self) -> None:
        """Let everything that is unanswered time out, and be emitted again."""
        for _ in range(2):
            self.cluster.advance(30)
            self.cluster.run()

    @property
    def spouts(self) -> list[Messages]:
        return [self.cluster.spout("spout", at) for at in range(len(self.cluster.layout.tasks["spout"]))]

    @property
    def early(self) -> list[int]:
        return [message for each in self.spouts for message in each.early]

    @property
    def acked(self) -> set[int]:
        return {message for each in self.spouts for message in each.acked}


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_a_message_is_acked_when_its_whole_tree_is_executed_and_not_before(seed: int) -> None:
    run = Run(seed)
    run.cluster.run()
    assert (run.early, run.acked, run.cluster.pending) == ([], set(range(MESSAGES)), 0)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(SEEDS, st.integers(1, 3))
def test_bolts_may_hold_tuples_back_and_anchor_to_many(seed: int, holds: int) -> None:
    run = Run(seed, holds=holds)
    run.cluster.run()
    assert run.early == []
    assert run.acked == {message for message in range(MESSAGES) if Ledger.whole(message)}


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_losses_and_doubles_complete_no_tree_early_and_replays_complete_all(seed: int) -> None:
    run = Run(seed, losses=0.1, doubles=0.1)
    run.cluster.run()
    run.time_out()
    run.losses = run.doubles = 0.0
    for _ in range(3):
        run.time_out()
    assert (run.early, run.acked, run.cluster.pending) == ([], set(range(MESSAGES)), 0)


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(0, 40))
def test_killed_executors_lose_no_message(seed: int, steps: int) -> None:
    run = Run(seed)
    tasks = [task for task in run.cluster.layout.component_of if run.cluster.layout.component_of[task] != "spout"]
    for _ in range(steps):
        run.cluster.step()
    run.cluster.kill(run.random.choice(tasks))
    run.cluster.run()
    for _ in range(3):
        run.time_out()
    assert (run.early, run.acked, run.cluster.pending) == ([], set(range(MESSAGES)), 0)


# ---- the tests above notice a wrong tracker -------------------------------------------------------------------------------


_ACK, _EMIT = BoltCollector.ack, BoltCollector.emit
_children: dict[Tuple, int] = {}
"""The xor of the edges to what is anchored to a tuple."""


def _emit_and_note_the_children(
    collector: BoltCollector, values: Sequence[Any], anchors: Tuple | Sequence[Tuple], stream_id: str = "default"
) -> Sequence[int]:
    of = [anchors] if isinstance(anchors, Tuple) else anchors
    before = [each.edge for each in of]
    tasks = _EMIT(collector, values, anchors, stream_id)
    for each, edge in zip(of, before, strict=True):
        _children[each] = _children.get(each, 0) ^ each.edge ^ edge
    return tasks


def _ack_before_the_children(collector: BoltCollector, tuple: Tuple) -> None:
    """What must not be: the tuple leaves its trees in one message, and its children enter them in a later one."""
    children = _children.pop(tuple, 0)
    tuple.edge ^= children
    _ACK(collector, tuple)
    collector.outbox.flush()
    for root in tuple.roots:
        collector.outbox.acks[root] = collector.outbox.acks.get(root, 0) ^ children


def _one_edge_for_all_anchors(collector: BoltCollector, anchors: Sequence[Tuple]) -> dict[int, int]:
    """What must not be: anchors of one root cancel each other's edge."""
    edge = Random(len(Ledger.executions)).getrandbits(64)
    ids: dict[int, int] = {}
    for each in anchors:
        each.edge ^= edge
        for root in each.roots:
            ids[root] = ids.get(root, 0) ^ edge
    return ids


def _wrong(seed: int) -> bool:
    run = Run(seed, holds=seed % 3)
    run.cluster.run()
    return bool(run.early) or run.acked != {message for message in range(MESSAGES) if Ledger.whole(message)}


@pytest.mark.parametrize(
    "planted",
    [{"ack": _ack_before_the_children, "emit": _emit_and_note_the_children}, {"_join": _one_edge_for_all_anchors}],
    ids=lambda planted: next(iter(planted)),
)
def test_a_planted_bug_is_noticed(monkeypatch: pytest.MonkeyPatch, planted: dict[str, Callable[..., object]]) -> None:
    assert not any(map(_wrong, range(60)))
    for name, method in planted.items():
        monkeypatch.setattr(BoltCollector, name, method)
    assert any(map(_wrong, range(60)))


def test_an_acker_that_takes_a_beginning_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Outbox.begin

    def twice(outbox: Outbox, root: int, edges: int, spout_task: int) -> None:
        begin(outbox, root, edges, spout_task)
        outbox.acks[root] = outbox.acks.get(root, 0) ^ edges  # as if the second beginning were an answer

    monkeypatch.setattr(Outbox, "begin", twice)
    assert any(map(_wrong, range(60)))
