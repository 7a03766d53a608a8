"""The word count of Storm's documentation, on every kind of cluster in this process."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.storm.components import SENTENCES, BasicSplit, Split, word_count
from trident.storm.testing import SteppedCluster, complete_topology

WORDS = Counter(word for (sentence,) in SENTENCES for word in sentence.split())


@pytest.mark.parametrize("split", [Split(), BasicSplit()])
@pytest.mark.parametrize("ackers", [0, 1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_every_word_is_counted_and_every_sentence_acked(split: Any, ackers: int, seed: int) -> None:
    done = complete_topology(word_count(split), {"sentences": SENTENCES}, acker_executors=ackers, seed=seed)
    assert Counter(word for (word,) in done.tuples("split")) == WORDS
    assert {word: max(n for w, n in done.tuples("count") if w == word) for word in WORDS} == WORDS
    assert (done.acked["sentences"], done.failed["sentences"], done.errors) == ([0, 1, 2, 3], [], ())


def test_equal_words_meet_in_one_task() -> None:
    with SteppedCluster(word_count(counts=4)) as cluster:
        cluster.run()
        counted = [cluster.instance("count", at).counts for at in range(4)]
    assert sum(map(Counter, counted), Counter()) == WORDS
    assert sum(map(len, counted)) == len(WORDS)  # no word in two tasks


def test_a_killed_bolt_loses_its_tuples_and_the_spout_emits_their_roots_again() -> None:
    with SteppedCluster(word_count(splits=1)) as cluster:
        while not cluster.waiting("split"):
            cluster.step()
        cluster.kill(cluster.layout.tasks["split"][0])
        cluster.run()
        spout = cluster.spout("sentences")
        assert len(spout.acked) < len(SENTENCES)
        cluster.advance(30)
        cluster.run()
        cluster.advance(30)
        cluster.run()
        assert set(spout.acked) == set(range(len(SENTENCES)))
        assert set(spout.failed)
        assert cluster.pending == 0
