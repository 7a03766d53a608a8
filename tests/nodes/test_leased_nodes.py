"""When a session is over that others judge: by what they see, and by their own clock while they look."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest

from trident.nodes import polled_nodes
from trident.nodes.interface import Create, NodeEvent, Put, StoredNode
from trident.nodes.polled_nodes import LeasedNodes, NodeTable, Work, above

T = TypeVar("T")
TIMEOUT_S = 10.0


class Clock:
    """The time that all processes have."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Table(dict[str, StoredNode]):
    """What is stored; each session of a test has it."""

    def find(self, paths: Sequence[str]) -> dict[str, StoredNode]:
        return {path: self[path] for path in paths if path in self}

    def below(self, paths: Sequence[str]) -> dict[str, list[str]]:
        return {path: [each.rpartition("/")[2] for each in self if above(each) == path != each] for path in paths}

    def owned(self, session: str) -> list[str]:
        return [path for path, node in self.items() if node.owner == session]


class SharedNodes(LeasedNodes):
    """One of several processes, whose thread sleeps: a test looks when it wants to."""

    def __init__(self, table: Table) -> None:
        self.table, self.told = table, list[NodeEvent]()
        super().__init__("nodes of a test", TIMEOUT_S, self.told.append, 3600.0)

    def look(self) -> None:
        self._look_at_sessions(False)

    def _seen(self, look: Callable[[NodeTable], T]) -> T:
        return look(self.table)

    def _transact(self, work: Work, durable: bool = True) -> Any:
        changes = work(self.table)
        if isinstance(changes, str):
            return changes
        for path, node in changes.items():
            self.table.pop(path, None)
            self.table |= {} if node is None else {path: node}
        return None

    def _count(self) -> object:
        return 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(polled_nodes, "time", clock)
    return clock


@pytest.fixture
def two(clock: Clock) -> Iterator[tuple[SharedNodes, SharedNodes]]:
    table = Table({"/": StoredNode(b"", 0)})
    one, other = SharedNodes(table), SharedNodes(table)
    one.change(Create("/a", b"1", ephemeral=True))
    yield one, other
    one.close()
    other.close()


def test_a_session_that_is_set_again_goes_on(clock: Clock, two: tuple[SharedNodes, SharedNodes]) -> None:
    one, other = two
    for _ in range(100):
        clock.now += 1.0
        one.look()
        other.look()
    assert "/a" in one.table
    assert one.told == other.told == []


def test_a_session_that_is_silent_is_ended_and_its_process_finds_out(
    clock: Clock, two: tuple[SharedNodes, SharedNodes]
) -> None:
    one, other = two
    for seconds in range(12):
        assert "/a" in one.table, f"after {seconds} seconds"
        clock.now += 1.0
        other.look()
    assert "/a" not in one.table
    before = one.id
    assert one.change(Put("/a", b"2")) == "missing"
    assert one.told == [("expired", "")]
    assert one.id != before
    assert one.change(Create("/a", b"2", ephemeral=True)) is None
    assert one.table["/a"] == StoredNode(b"2", 0, one.id)


def test_a_look_after_a_long_sleep_or_a_jump_ends_no_session(
    clock: Clock, two: tuple[SharedNodes, SharedNodes]
) -> None:
    one, other = two
    other.look()
    for _ in range(9):
        clock.now += 3600.0
        other.look()
    assert "/a" in one.table
    one.look()
    for _ in range(9):
        clock.now += 3600.0
        other.look()
    assert "/a" in one.table


def test_a_session_that_was_set_again_meanwhile_is_not_ended(
    clock: Clock, two: tuple[SharedNodes, SharedNodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    transact, late = other._transact, list[bool]()

    def transact_late(work: Work, durable: bool = True) -> Any:
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
    assert one.table["/a"].data == b"2"
