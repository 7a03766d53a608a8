"""When a session is over that others judge: by what they see, and by their own clock while they look."""

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from trident.nodes import polled_nodes
from trident.nodes.interface import Create, NodeEvent, Put, StoredNode
from trident.nodes.polled_nodes import SESSIONS, LeasedNodes, SqlTable

T = TypeVar("T")
TIMEOUT_S = 10.0


class Clock:
    """The time that all processes have."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class SharedNodes(LeasedNodes):
    """One of several processes, whose thread sleeps: a test looks when it wants to."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db, self.table, self.told = db, SqlTable(db.execute), list[NodeEvent]()
        super().__init__("nodes of a test", TIMEOUT_S, self.told.append, 3600.0)

    @property
    def a(self) -> StoredNode | None:
        return self.table.find(["/a"]).get("/a")

    def look(self) -> None:
        self._look_at_sessions(False)

    def _read_nodes(self, look: Callable[[SqlTable], T]) -> T:
        return look(self.table)

    def _transact(self, work: Callable[[SqlTable], T], durable: bool = True) -> T:
        with self.db:
            return work(self.table)

    def _count(self) -> object:
        return 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(polled_nodes, "time", clock)
    return clock


@pytest.fixture
def two(clock: Clock) -> Iterator[tuple[SharedNodes, SharedNodes]]:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE node (path PRIMARY KEY, parent, name, data, version, session)")
    db.execute("INSERT INTO node VALUES ('/', '', '', x'', 0, NULL), (?, '', '', x'', 0, NULL)", (SESSIONS,))
    one, other = SharedNodes(db), SharedNodes(db)
    one.change(Create("/a", b"1", ephemeral=True))
    yield one, other
    one.close()
    other.close()
    db.close()


def test_a_session_that_is_set_again_goes_on(clock: Clock, two: tuple[SharedNodes, SharedNodes]) -> None:
    one, other = two
    for _ in range(100):
        clock.now += 1.0
        one.look()
        other.look()
    assert one.a is not None
    assert one.told == other.told == []


def test_a_session_that_is_silent_is_ended_and_its_process_finds_out(
    clock: Clock, two: tuple[SharedNodes, SharedNodes]
) -> None:
    one, other = two
    for seconds in range(12):
        assert one.a is not None, f"after {seconds} seconds"
        clock.now += 1.0
        other.look()
    assert one.a is None
    before = one.id
    assert one.change(Put("/a", b"2")) == "missing"
    assert one.told == [("expired", "")]
    assert one.id != before
    assert one.change(Create("/a", b"2", ephemeral=True)) is None
    assert one.a == StoredNode(b"2", 0, one.id)


def test_a_look_after_a_sleep_or_a_jump_ends_no_session(clock: Clock, two: tuple[SharedNodes, SharedNodes]) -> None:
    one, other = two
    other.look()
    for _ in range(9):
        clock.now += 3600.0
        other.look()
    assert one.a is not None
    one.look()
    for _ in range(9):
        clock.now += 3600.0
        other.look()
    assert one.a is not None


def test_a_session_that_was_set_again_meanwhile_is_not_ended(
    clock: Clock, two: tuple[SharedNodes, SharedNodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    transact, late = other._transact, list[bool]()

    def transact_late(work: Callable[[SqlTable], Any], durable: bool = True) -> Any:
        if not late:
            late.append(one.change(Put("/a", b"2")) is None)  # just before the one that judges ends it
        return transact(work, durable)

    monkeypatch.setattr(other, "_transact", transact_late)
    while not late:
        clock.now += 1.0
        other._set_at = clock.now  # so that it only judges
        other.look()
    assert late == [True]
    assert clock.now == 12.0
    assert one.a == StoredNode(b"2", 1, one.id)
