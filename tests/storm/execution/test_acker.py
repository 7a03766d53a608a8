"""The acker by itself: orders, doubles, timeouts, memory."""

from __future__ import annotations

import tracemalloc
from itertools import permutations
from random import Random

import pytest

from trident.storm.execution.acker import Acker
from trident.storm.execution.messages import Outcomes, Tracking

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


def test_a_message_to_no_bolt_is_complete_at_once() -> None:
    told = Told()
    told.hear(Tracking(begun=[ROOT, 0, SPOUT]))
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
