"""Deleting and listing keys of a Delta state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from states.delta import DeltaBackingMap, DeltaOptions
from tests.states.delta.delta_states import WORDS, Log, changes, commit, reader_at, state_at, update
from trident.errors import BackendError
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Txid
from trident.state.values import OpaqueValue, TransactionalValue

every_kind = pytest.mark.parametrize("kind", list(StateType), ids=lambda kind: kind.value)


def stored(kind: StateType, number: int) -> Any:
    if kind is StateType.OPAQUE:
        return OpaqueValue(1, 1, None, number)
    return TransactionalValue(1, number) if kind is StateType.TRANSACTIONAL else number


def map_at(path: Path, kind: StateType, conf: StateConf = WORDS, **options: Any) -> DeltaBackingMap:
    return DeltaBackingMap(path, kind, conf, options=DeltaOptions(**options))


def keys_of(backing: DeltaBackingMap) -> list[Any]:
    return sorted(key for page in backing.key_pages() for key in page)


@every_kind
@pytest.mark.parametrize("conf", [WORDS, StateConf()], ids=["typed", "encoded"])
def test_deleted_keys_are_gone_for_this_instance_and_every_other(
    tmp_path: Path, kind: StateType, conf: StateConf
) -> None:
    backing = map_at(tmp_path, kind, conf)
    keys = [("man",), ("dog",), ("cow",)]
    backing.multi_put(keys, [stored(kind, number) for number in (1, 2, 3)])
    backing.multi_delete([("dog",), ("never",), ("man",)])
    reader = DeltaBackingMap(tmp_path, kind, StateConf(conf.topology, conf.state, conf.key_fields, conf.value_type,
                                                      read_only=True))  # fmt: skip
    for one in (backing, map_at(tmp_path, kind, conf), reader):
        assert one.multi_get(keys) == [None, None, stored(kind, 3)]
        assert keys_of(one) == [("cow",)]
    backing.multi_put([("man",)], [stored(kind, 5)])
    for one in (backing, map_at(tmp_path, kind, conf), reader):
        assert one.multi_get(keys) == [stored(kind, 5), None, stored(kind, 3)]


@every_kind
def test_a_deletion_in_a_commit_is_part_of_it_and_loses_no_put(tmp_path: Path, kind: StateType) -> None:
    backing = map_at(tmp_path, kind)
    backing.multi_put([("man",), ("dog",), ("cow",)], [stored(kind, 1)] * 3)
    backing.begin(Txid(2))
    backing.multi_put([("cow",)], [stored(kind, 9)])
    backing.multi_delete([("man",), ("dog",), ("cow",)])
    backing.multi_put([("dog",)], [stored(kind, 7)])
    expected = [None, stored(kind, 7), stored(kind, 9)]
    assert backing.multi_get([("man",), ("dog",), ("cow",)]) == expected
    assert keys_of(backing) == [("cow",), ("dog",)]
    assert map_at(tmp_path, kind).multi_get([("man",)]) == [stored(kind, 1)]
    backing.end(Txid(2))
    for one in (backing, map_at(tmp_path, kind)):
        assert one.multi_get([("man",), ("dog",), ("cow",)]) == expected
    assert DeltaTable(changes(tmp_path)).version() == 2


def test_a_commit_that_fails_deletes_nothing(tmp_path: Path) -> None:
    backing = map_at(tmp_path, StateType.OPAQUE)
    backing.multi_put([("man",)], [stored(StateType.OPAQUE, 1)])
    backing.begin(Txid(2))
    backing.multi_delete([("man",)])
    map_at(tmp_path, StateType.OPAQUE).multi_put([("dog",)], [stored(StateType.OPAQUE, 1)])
    with pytest.raises(BackendError, match="committed meanwhile"):
        backing.end(Txid(2))
    assert backing.multi_get([("man",), ("dog",)]) == [stored(StateType.OPAQUE, 1)] * 2


def test_the_marks_of_deleted_keys_go_with_the_next_compaction_of_all_rows(tmp_path: Path) -> None:
    backing = map_at(tmp_path, StateType.OPAQUE, compact_after_commits=3, background_maintenance=False)
    keys = [(f"w{n}",) for n in range(10)]
    backing.multi_put(keys, [stored(StateType.OPAQUE, 1)] * 10)
    backing.multi_delete(keys[:9])
    assert DeltaTable(changes(tmp_path)).to_pyarrow_table().num_rows == 19
    backing.multi_put(keys[9:], [stored(StateType.OPAQUE, 2)])
    assert DeltaTable(changes(tmp_path)).to_pyarrow_table().num_rows == 1
    assert keys_of(map_at(tmp_path, StateType.OPAQUE)) == keys[9:]


def test_a_compaction_of_the_newest_rows_keeps_the_marks(tmp_path: Path) -> None:
    backing = map_at(tmp_path, StateType.OPAQUE, compact_after_commits=4, background_maintenance=False)
    many = [(f"m{n}",) for n in range(1000)]
    backing.multi_put(many, [stored(StateType.OPAQUE, 1)] * 1000)
    for n in range(3):
        backing.multi_delete(many[n : n + 1])
    assert DeltaTable(changes(tmp_path)).history(1)[0]["trident.compaction"] == "files"
    assert keys_of(map_at(tmp_path, StateType.OPAQUE)) == sorted(many[3:])


def test_listing_sees_the_newest_version_and_its_own_commit(tmp_path: Path) -> None:
    state, reader, log = state_at(tmp_path), reader_at(tmp_path), Log()
    assert list(reader.get_tuples()) == []
    commit(state, log, 1, 1, {"man": 1})
    assert list(reader.get_tuples()) == [("man", 1)]
    state.begin_commit(log.txid(2, 1))
    update(state, {"dog": 2})
    assert sorted(state.get_tuples()) == [("dog", 2), ("man", 1)]
    assert list(reader.get_tuples()) == [("man", 1)]
