"""Each store keeps one order of sentinels, in whatever language it states it: the same table of cases, on real servers.

And none where a commit is of no log. A reader moves none, and writes nothing else.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.storekit.sentinel_cases import SENTINEL_CASES, SentinelCase
from tests.stores.catalog import Home
from tests.stores.conftest import cases
from trident.errors import UnsupportedOperation
from trident.state.backing_map import BackingMap, backing_map
from trident.state.interfaces import StateConf
from trident.state.sentinel import fenced
from trident.state.txid import Sentinel, Txid
from trident.testing.backend.schedules import Add
from trident.testing.backend.store_under_test import Store


@pytest.mark.sample(1)
@pytest.mark.slow
@cases(lambda store: store.fences and store.name != "cassandra-columns")  # has the sentinels of "cassandra"
def test_a_store_answers_each_case_as_the_rule_does(name: str, home_of: Callable[[str], Home]) -> None:
    home = home_of(name)
    # Delta stores no run. A second run finds the sentinel of its own commit, which the log does not expect.
    answer_each_case(Store(home.empty(), limits=home.store.limits), runs=name != "delta")


def answer_each_case(store: Store, runs: bool = True) -> None:
    try:
        other = store.map()
        for case in SENTINEL_CASES:
            there = [found for found in (case.seen, case.found) if found]
            # A store that writes a commit whole has no seal.
            if backing_map(other).facts.commits_atomically and not all(found.sealed for found in there):
                continue
            if runs or not any(found.run for found in there):
                check(store, other, case)
    finally:
        store.close()


def check(store: Store, other: BackingMap, case: SentinelCase) -> None:
    lay(other, case.seen)
    late = store.map()
    fenced(late, 0).read_sentinel()
    if case.found is not case.seen:
        lay(other, case.found)
    if case.error is None:
        move(late, case.own, case.force, store.limits.moves_at_commit)
        return
    with pytest.raises(case.error):
        move(late, case.own, case.force, store.limits.moves_at_commit)
    assert fenced(store.map(), 0).read_sentinel() == case.found, case.meaning


def move(late: BackingMap, own: Sentinel, force: bool, moves_at_commit: bool) -> None:
    fenced(late, 0).move_sentinel(own, force)
    if moves_at_commit and not force:
        commit = Txid(own.txid, own.attempt, incarnation=own.incarnation)
        late.begin(commit)
        late.end(commit)


def lay(backing: BackingMap, sentinel: Sentinel | None) -> None:
    if sentinel is None:
        backing.reset()
        return
    guard = fenced(backing, 0)
    guard.read_sentinel()
    guard.move_sentinel(sentinel, force=True)


@pytest.mark.slow
@cases(lambda store: store.name != "sqlite" and "-" not in store.name)
def test_commits_of_plain_numbers_follow_each_other_and_leave_no_sentinel(
    name: str, home_of: Callable[[str], Home]
) -> None:
    home = home_of(name)
    state_name = home.fresh_name("plain")
    writer, reader = (home.open(state_name)[0] for _ in range(2))
    for txid in (1, 2, 2):
        writer.begin_commit(txid)
        writer.multi_update([("a",)], [Add(1)])
        writer.commit(txid)
    assert reader.multi_get([("a",)]) == [2]
    assert reader.read_sentinel() is None
    for each in (writer, reader):
        each.close()


KEYS = [("the",), ("cow",)]


class Declared(Store):
    """States with declared fields, which columns need."""

    def conf(self, state: str = "state", topology: str | None = None, read_only: bool = False) -> StateConf:
        made = super().conf(state, topology, read_only)
        return replace(made, key_fields=(("word", "string"),), value_type="bigint", value_field="count")


@cases(lambda store: store.server is not None or store.name == "delta")
def test_a_reader_is_refused_each_write(name: str, home_of: Callable[[str], Home]) -> None:
    home = home_of(name)
    store = Declared(home.empty(), limits=home.store.limits)
    try:
        writer = store.writer()
        writer.commit([(key, 1) for key in KEYS], 1)
        before = store.map().read_sentinel()
        reader: Any = store.map(reads=True)
        for write in (
            lambda: reader.multi_put(KEYS, reader.multi_get(KEYS)),
            lambda: reader.multi_delete(KEYS),
            lambda: reader.move_sentinel(Sentinel("log", 9, 9), True),
            reader.reset,
        ):
            with pytest.raises(UnsupportedOperation, match=r"cannot .*: .* was opened to be read only"):
                write()
        assert store.map().read_sentinel() == before
        assert writer.read(KEYS) == [1, 1]
    finally:
        store.close()
