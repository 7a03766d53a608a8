"""The watches of a session in a cluster's SQLite file: each fires once, at the first entry after it was set."""

from __future__ import annotations

from typing import Any

import pytest

from trident.cluster.state.cluster_state import EventKind
from trident.cluster.state.sqlite_session import JournalWatches

Entry = tuple[int, EventKind, str]
CREATED: Entry = (1, "created", "/a")
CHANGED: Entry = (2, "changed", "/a")
AGAIN: Entry = (3, "changed", "/a")


@pytest.mark.parametrize(
    ("set_at", "fired"),
    [([0], [CREATED]), ([1], [CHANGED]), ([0, 1], [CREATED, CHANGED]), ([0, 0], [CREATED]),
     ([0, 1, 2], [CREATED, CHANGED, AGAIN]), ([0, 2], [CREATED, AGAIN]), ([3], []), ([], [])],
)  # fmt: skip
def test_a_watch_that_is_set_again_before_its_event_is_read_fires_again(set_at: list[int], fired: list[Any]) -> None:
    watches = JournalWatches(0)
    for since in set_at:
        watches.watch_data("/a", since)
    assert watches.read([CREATED, CHANGED, AGAIN]) == [entry[1:] for entry in fired]


def test_watches_that_wait_for_the_same_are_one() -> None:
    watches = JournalWatches(0)
    for since in range(100):
        watches.watch_children("/a", since)
        watches.position = since
    assert len(watches._children["/a"]) <= 2
    assert watches.read([(100, "created", "/a/b"), (101, "created", "/a/c")]) == [("children", "/a")]
