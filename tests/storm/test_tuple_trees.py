"""The promise of the ackers: orders, doubles, timeouts; the word count of Storm, and random trees."""

import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import permutations
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storm.random_trees import (
    MESSAGES,
    SENTENCES,
    BasicSplit,
    Ledger,
    Messages,
    Split,
    random_topology,
    word_count,
)
from trident.storm.execution.acker import Acker
from trident.storm.execution.collectors import BoltCollector
from trident.storm.execution.messages import Body, Outbox, Outcomes, Tracking
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


@pytest.mark.slow
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


@pytest.mark.slow
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


ROOT, SPOUT = 7, 3


class Told:
    """An acker, and what it told spouts."""

    def __init__(self) -> None:
        self.acker = Acker(self._tell)
        self.acked: list[tuple[int, int]] = []
        self.failed: list[tuple[int, int]] = []
        self.extended: list[tuple[int, int]] = []

    def _tell(self, task: int, outcomes: Outcomes) -> None:
        self.acked += [(task, root) for root in outcomes.acked]
        self.failed += [(task, root) for root in outcomes.failed]
        self.extended += [(task, root) for root in outcomes.extended]

    def hear(self, news: Tracking) -> None:
        self.acker.handle(news)


def test_a_tree_completes_in_every_order_of_its_news_and_only_at_its_end() -> None:
    # spout → a, b; a → c. Edges: 1, 2, 4.
    news = [
        Tracking(begun=[ROOT, 1 ^ 2, SPOUT]),
        Tracking(acked=[ROOT, 1 ^ 4]),
        Tracking(acked=[ROOT, 2]),
        Tracking(acked=[ROOT, 4]),
    ]
    for order in permutations(news):
        told = Told()
        for each in order:
            assert told.acked == []
            told.hear(each)
        assert (told.acked, len(told.acker)) == ([(SPOUT, ROOT)], 0)


def test_a_tree_without_its_beginning_never_completes() -> None:
    told = Told()
    told.hear(Tracking(acked=[ROOT, 5, ROOT, 5]))
    assert (told.acked, told.failed) == ([], [])


def test_a_beginning_that_comes_twice_completes_nothing() -> None:
    told = Told()
    for _ in range(2):
        told.hear(Tracking(begun=[ROOT, 1, SPOUT]))
    assert told.acked == []
    told.hear(Tracking(acked=[ROOT, 1]))
    assert told.acked == [(SPOUT, ROOT)]


@pytest.mark.parametrize("before", [False, True])
def test_a_failure_is_told_once_before_or_after_the_beginning(before: bool) -> None:
    told = Told()
    news = [Tracking(begun=[ROOT, 1, SPOUT]), Tracking(failed=[ROOT])]
    for each in reversed(news) if before else news:
        told.hear(each)
    assert (told.failed, told.acked) == ([(SPOUT, ROOT)], [])
    told.hear(Tracking(acked=[ROOT, 1], failed=[]))
    assert (told.failed, told.acked) == ([(SPOUT, ROOT)], [])


def test_a_tree_is_forgotten_after_three_rotations_without_news() -> None:
    told = Told()
    told.hear(Tracking(begun=[ROOT, 1, SPOUT]))
    assert [told.acker.rotate(), told.acker.rotate(), len(told.acker), told.acker.rotate()] == [0, 0, 1, 1]
    told.hear(Tracking(acked=[ROOT, 1]))
    assert told.acked == []


def test_an_extended_tree_is_young_again_and_its_spout_is_told() -> None:
    told = Told()
    told.hear(Tracking(begun=[ROOT, 1, SPOUT]))
    told.acker.rotate()
    told.acker.rotate()
    told.hear(Tracking(extended=[ROOT]))
    assert told.extended == [(SPOUT, ROOT)]
    assert [told.acker.rotate(), told.acker.rotate()] == [0, 0]
    told.hear(Tracking(acked=[ROOT, 1]))
    assert told.acked == [(SPOUT, ROOT)]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("size", "roots"), [(10, 20_000), (10_000, 50)])
def test_a_tree_takes_at_most_300_bytes_whatever_its_size(size: int, roots: int) -> None:
    random, told = Random(1), Told()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(roots):
        root = random.getrandbits(64)
        told.hear(Tracking(begun=[root, random.getrandbits(64), SPOUT]))
        told.hear(Tracking(acked=[each for _ in range(size) for each in (root, random.getrandbits(64))]))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(told.acker) == roots
    assert (after - before) / roots <= 300
