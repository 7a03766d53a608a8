"""The commits of a Delta state: the value rules over real tables, the sentinel, what is visible when; and its readers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from states.delta import DeltaBackingMap, DeltaState
from states.delta.data_files import DataFile, name_of
from states.delta.table_opening import TableOpening
from tests.states.delta.delta_states import WORDS, Log, changes, commit, reader_at, state_at, values, version_of
from trident.errors import (
    ConfigError,
    StateError,
    StateMismatchError,
)
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Txid
from trident.state.values import OpaqueValue


def test_a_batch_is_one_delta_version_with_the_transaction_id_of_its_attempt(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    commit(state, log, 1, 7, {str(n): n for n in range(5000)})
    assert version_of(tmp_path) == 1
    assert DeltaTable(changes(tmp_path)).transaction_version("trident/words/counts/0") == 8
    commit(state, log, 2, 7, {"1": 1})
    assert version_of(tmp_path) == 2


def test_nothing_is_created_before_the_first_commit(tmp_path: Path) -> None:
    state = state_at(tmp_path / "table")
    assert values(state, "man") == [None]
    assert state.read_sentinel() is None
    assert not (tmp_path / "table").exists()


def test_wiped_table_is_found_at_begin(tmp_path: Path) -> None:
    state, log = state_at(tmp_path / "t"), Log()
    commit(state, log, 1, 1, {"man": 1})
    state.wait_for_maintenance()
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(StateMismatchError, match="no commit at all"):
        state_at(tmp_path / "t").begin_commit(log.txid(2, 1))
    with pytest.raises(StateMismatchError):  # the instance that still holds an index of the deleted table
        commit(state, log, 2, 1, {"man": 1})
    assert values(state, "man") == [None]


def test_a_table_that_was_rolled_back_is_found_at_begin(tmp_path: Path) -> None:
    state, log = state_at(tmp_path / "t"), Log()
    commit(state, log, 1, 1, {"man": 1})
    state.wait_for_maintenance()  # no thread of its own writes into a folder that is copied or removed
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    commit(state, log, 2, 1, {"man": 1})
    state.wait_for_maintenance()
    shutil.rmtree(tmp_path / "t")
    (tmp_path / "copy").rename(tmp_path / "t")
    for one in (state, state_at(tmp_path / "t")):
        with pytest.raises(StateMismatchError, match="log expects batch 2 .* store has batch 1"):
            one.begin_commit(log.txid(3, 1))


@pytest.mark.parametrize("end", ["", "-c000"])
def test_a_file_of_another_program_is_not_known_by_its_name_whatever_its_uuid_is(end: str) -> None:
    name = f"part-00000-77649497-0000-4000-8000-123456789012{end}.snappy.parquet"
    fact = {"path": name, "size_bytes": 1, "num_records": 21, "min._seq": 1, "max._seq": 7}
    assert DataFile.of(fact)[-2:] == (1, 7)
    assert DataFile.of({**fact, "path": name_of(3, 10**10)})[-2:] == (3, 10**10)


def test_rows_copied_from_a_table_of_higher_versions_are_older_than_new_ones(tmp_path: Path) -> None:
    state, log = state_at(tmp_path / "t"), Log()
    for number in range(1, 8):
        commit(state, log, number, 1, {"man": 1, f"w{number}": 1})
    changes(tmp_path / "copy").mkdir(parents=True)
    write_deltalake(str(changes(tmp_path / "copy")), DeltaTable(changes(tmp_path / "t")).to_pyarrow_table())
    for number in range(8, 12):
        copy = state_at(tmp_path / "copy", compact_after_commits=64 if number < 10 else 2)
        commit(copy, log, number, 1, {"man": 1})
        assert values(state_at(tmp_path / "copy"), "man", "w3") == [number, 1]
    assert version_of(tmp_path / "copy") < 8


def test_the_changes_of_a_state_are_no_state_of_their_own(tmp_path: Path) -> None:
    commit(state_at(tmp_path / "t"), Log(), 1, 1, {"man": 1})
    shutil.copytree(changes(tmp_path / "t"), tmp_path / "copy")
    for one in (state_at(tmp_path / "copy"), reader_at(tmp_path / "copy")):
        with pytest.raises(StateError, match="it holds the changes of a state itself"):
            one.read_sentinel()


def test_a_table_that_is_made_while_a_reader_looks_for_it_is_no_other_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(state_at(tmp_path / "t"), Log(), 1, 1, {"man": 1})
    look, looks = TableOpening._version, iter(range(100))
    monkeypatch.setattr(TableOpening, "_version", lambda *which: look(*which) if next(looks) else None)
    assert values(reader_at(tmp_path / "t"), "man") == [1]


def test_a_table_whose_changes_are_still_to_be_made_is_no_other_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(state_at(tmp_path / "t"), Log(), 1, 1, {"man": 1})
    shutil.rmtree(changes(tmp_path / "t"))
    look, looks = TableOpening._version, iter(range(100))
    monkeypatch.setattr(TableOpening, "_version", lambda *which: look(*which) if next(looks) != 1 else None)
    assert values(reader_at(tmp_path / "t"), "man") == [None]


def test_puts_outside_of_a_commit_are_durable_at_once(tmp_path: Path) -> None:
    backing = DeltaBackingMap(tmp_path, StateType.NON_TRANSACTIONAL, WORDS)
    backing.multi_put([("man",)], [1])
    backing.multi_put([("man",), ("dog",)], [2, 3])
    backing.multi_put([], [])
    again = DeltaBackingMap(tmp_path, StateType.NON_TRANSACTIONAL, WORDS)
    assert again.multi_get([("dog",), ("cat",), ("man",)]) == [3, None, 2]
    assert version_of(tmp_path) == 2


def test_end_without_begin_is_refused(tmp_path: Path) -> None:
    backing = DeltaBackingMap(tmp_path, StateType.OPAQUE, WORDS)
    with pytest.raises(StateError, match="end of batch 3 .* without its begin"):
        backing.end(Txid(3))


def test_a_table_is_one_partition_and_has_a_path(tmp_path: Path) -> None:
    spec = DeltaState.opaque(path=str(tmp_path))  # type: ignore[call-arg]
    assert (spec.required_num_partitions, spec.kind) == (1, StateType.OPAQUE)
    with pytest.raises(ConfigError, match="with 2 partitions: a table is one partition"):
        spec.factory.make_state(StateConf(), 1, 2)
    with pytest.raises(ConfigError, match="path=None of a Delta state: give the folder or the URL"):
        DeltaState.opaque()


# ---- readers ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reader_whose_files_were_deleted_moves_on_to_the_newer_version(tmp_path: Path) -> None:
    state, log = state_at(tmp_path, compact_after_commits=4), Log()
    for number in range(1, 4):
        commit(state, log, number, 1, {"man": 1})
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


@pytest.mark.slow
def test_a_reader_asks_the_store_once_per_version(tmp_path: Path) -> None:
    state, log, reader = state_at(tmp_path), Log(), reader_at(tmp_path)
    assert values(reader, "man") == [None]
    for number in (1, 2):
        commit(state, log, number, 1, {"man": 1})
        assert values(reader, "man", "dog") == [number, None]
    for file in DeltaTable(changes(tmp_path)).file_uris():
        Path(file).unlink()
    assert values(reader, "man", "dog") == [2, None]
