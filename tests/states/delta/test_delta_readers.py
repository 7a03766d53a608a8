"""Readers of a Delta state: files that were deleted under them, how often they ask, and that they write nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from states.delta import DeltaBackingMap
from tests.states.delta.delta_states import WORDS, Log, changes, commit, count_men, reader_at, state_at, values
from trident.errors import UnsupportedOperation
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Sentinel, Txid
from trident.state.values import OpaqueValue

pytestmark = pytest.mark.slow


def test_a_reader_whose_files_were_deleted_moves_on_to_the_newer_version(tmp_path: Path) -> None:
    state, log = state_at(tmp_path, compact_after_commits=4), Log()
    count_men(state, log, range(1, 4))
    reader = DeltaBackingMap(
        tmp_path, StateType.OPAQUE, StateConf(key_fields=WORDS.key_fields, value_type="bigint", read_only=True)
    )
    table = reader._table
    before = table.refresh()
    old = DeltaTable(changes(tmp_path)).file_uris()
    commit(state, log, 4, 1, {"man": 1})
    state.wait_for_maintenance()
    for file in old:
        Path(file).unlink()
    assert table.version == before  # the reader is still at the version of which no file is left
    assert table.scan().num_rows == 2
    assert table.version > before
    assert reader.multi_get([("man",)]) == [OpaqueValue(4, 1, 3, 4)]


def test_a_reader_asks_the_store_once_per_version(tmp_path: Path) -> None:
    state, log, reader = state_at(tmp_path), Log(), reader_at(tmp_path)
    assert values(reader, "man") == [None]
    for number in (1, 2):
        commit(state, log, number, 1, {"man": 1})
        assert values(reader, "man", "dog") == [number, None]
    for file in DeltaTable(changes(tmp_path)).file_uris():
        Path(file).unlink()
    assert values(reader, "man", "dog") == [2, None]


def test_a_read_only_instance_writes_nothing(tmp_path: Path) -> None:
    backing = DeltaBackingMap(tmp_path, StateType.OPAQUE, StateConf(read_only=True))
    with pytest.raises(UnsupportedOperation, match="opened to be read only"):
        backing.multi_put([("a",)], [OpaqueValue(1, 1, None, 1)])
    with pytest.raises(UnsupportedOperation):
        backing.begin(Txid(1))
    with pytest.raises(UnsupportedOperation):
        backing.move_sentinel(Sentinel("inc", 1, 1), force=True)
    with pytest.raises(UnsupportedOperation):
        backing.reset()
    assert list(tmp_path.iterdir()) == []
