"""The commits of a Delta state over real tables, its sentinel, and keys and values of every type."""

import datetime as dt
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from states.delta import DeltaBackingMap, DeltaOptions, DeltaState
from states.delta.data_files import DataFile, name_of
from states.delta.table_opening import TableOpening
from tests.states.delta.delta_states import (
    WORDS,
    Log,
    add,
    begun_at,
    changes,
    commit,
    reader_at,
    state_at,
    update,
    values,
    version_of,
)
from trident.errors import BackendError, ConfigError, CorruptValueError, StateError
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Txid
from trident.state.values import CombinerValueUpdater, OpaqueValue, TransactionalValue


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


@pytest.mark.parametrize("end", ["", "-c000"])
def test_a_file_of_another_program_is_not_known_by_its_name_whatever_its_uuid_is(end: str) -> None:
    name = f"part-00000-77649497-0000-4000-8000-123456789012{end}.snappy.parquet"
    fact = {"path": name, "size_bytes": 1, "num_records": 21, "min._seq": 1, "max._seq": 7}
    assert DataFile.of(fact)[-2:] == (1, 7)
    assert DataFile.of({**fact, "path": name_of(3, 10**10)})[-2:] == (3, 10**10)


@pytest.mark.slow
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


@pytest.mark.parametrize(("missed", "told"), [(0, 1), (1, None)], ids=["all of it", "its changes"])
def test_a_table_that_is_made_while_a_reader_looks_for_it_is_no_other_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missed: int, told: int | None
) -> None:
    commit(state_at(tmp_path / "t"), Log(), 1, 1, {"man": 1})
    if told is None:  # they are still to be made
        shutil.rmtree(changes(tmp_path / "t"))
    look, looks = TableOpening._version, iter(range(100))
    monkeypatch.setattr(TableOpening, "_version", lambda *which: look(*which) if next(looks) != missed else None)
    assert values(reader_at(tmp_path / "t"), "man") == [told]


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


@pytest.mark.slow
def test_a_reader_whose_files_were_deleted_moves_on_to_the_newer_version(tmp_path: Path) -> None:
    state, log = begun_at(tmp_path, compact_after_commits=4, batches=3)
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


TYPED = [
    ("string", ["", "a", "ünï\U0001f600", "\x00", None]),
    ("bigint", [0, -(2**63), 2**63 - 1, None]),
    ("binary", [b"", b"\x00\xff", None]),
    ("boolean", [True, False, None]),
    ("double", [0.1, 1, float("inf"), float("nan"), None]),
    ("float", [0.1, -1.5, None]),
    ("decimal(10,2)", [Decimal("1.5"), Decimal("-99999999.99"), None]),
    ("date", [dt.date(1, 1, 1), dt.date(2024, 2, 29), None]),
    ("timestamp", [dt.datetime(2024, 1, 1, 12, 0, 0, 1), dt.datetime(1969, 1, 1, tzinfo=dt.UTC), None]),
    ("timestamp_ntz", [dt.datetime(2024, 1, 1, 12), None]),
]
NESTED = [
    ("array<bigint>", [[1, None], [], None]),
    ("map<string,bigint>", [{"a": 1, "b": None}, {}, None]),
    ("struct<a:bigint,b:array<string>>", [{"a": 1, "b": ["x"]}, {"a": None, "b": None}, None]),
]


@pytest.mark.parametrize(("ddl", "parts"), TYPED, ids=[ddl for ddl, _ in TYPED])
def test_typed_keys_are_found_again_by_warm_and_cold_instances(tmp_path: Path, ddl: str, parts: list[Any]) -> None:
    conf = StateConf(key_fields=(("k", ddl), ("txid", "bigint")), value_type="bigint")
    keys = [(part, n % 2) for n, part in enumerate(parts)]
    state = state_at(tmp_path, conf)
    cold = StateConf(key_fields=conf.key_fields, value_type="bigint", read_only=True)
    for txid in (1, 2):
        state.begin_commit(txid)
        state.multi_update(keys, [CombinerValueUpdater(add, 1)] * len(keys))
        state.commit(txid)
    for one in (state, state_at(tmp_path, conf), state_at(tmp_path, cold)):
        assert one.multi_get([*keys, (parts[0], 7)]) == [2] * len(keys) + [None]


@pytest.mark.parametrize(("ddl", "parts"), TYPED + NESTED, ids=[ddl for ddl, _ in TYPED + NESTED])
def test_typed_values_are_the_same_to_warm_and_cold_instances(tmp_path: Path, ddl: str, parts: list[Any]) -> None:
    conf = StateConf(key_fields=(("k", "bigint"),), value_type=ddl)
    keys = [(n,) for n in range(len(parts))]
    state = state_at(tmp_path, conf)
    state.begin_commit(1)
    state.multi_put(keys, parts)
    state.commit(1)
    warm, cold = state.multi_get(keys), state_at(tmp_path, conf).multi_get(keys)
    assert repr(warm) == repr(cold)
    assert cold[-1] is None
    if ddl not in ("float", "double", "timestamp", "decimal(10,2)"):
        assert repr(cold) == repr(parts)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        (("curr", "key_curr", "TXID"), ["key_key_curr", "key_curr", "key_TXID"]),
        (("key", "Key", "key_KEY"), ["key", "key_key_Key", "key_KEY"]),  # of names that differ in case only
    ],
)
def test_key_columns_that_would_collide_are_renamed(tmp_path: Path, fields: tuple[str, ...], names: list[str]) -> None:
    conf = StateConf(key_fields=tuple(zip(fields, ("string", "bigint", "string"), strict=True)), value_type="bigint")
    state = state_at(tmp_path, conf)
    state.begin_commit(1)
    state.multi_put([("a", 1, "b")], [5])
    state.commit(1)
    state.close()
    assert state_at(tmp_path, conf).multi_get([("a", 1, "b")]) == [5]
    assert DeltaTable(changes(tmp_path)).to_pyarrow_table().column_names[:3] == names
    shown = DeltaTable(tmp_path).to_pyarrow_table().column_names[:3]
    assert shown == (names if "key" in fields else [*fields])


@pytest.mark.parametrize(
    ("ddl", "told"),
    [
        ("struct<a:map<string,array<timestamp_ntz>>>", "a timestamp_ntz inside of a map"),
        ("array<struct<at:bigint,At:bigint>>", "fields that differ in case only, of at, At"),
    ],
)
def test_types_that_delta_refuses_in_each_batch_are_refused_at_the_start(tmp_path: Path, ddl: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        state_at(tmp_path, StateConf(value_type=ddl))


def test_what_a_caller_does_to_a_value_does_not_reach_the_state(tmp_path: Path) -> None:
    for conf in (StateConf(), StateConf(value_type="array<bigint>")):
        state = state_at(tmp_path / str(conf.value_type), conf)
        mine = [1]
        state.begin_commit(1)
        state.multi_put([("k",)], [mine])
        mine.append(2)
        state.commit(1)
        (got,) = state.multi_get([("k",)])
        got.append(3)
        assert state.multi_get([("k",)]) == [[1]]


def test_a_value_that_does_not_fit_its_type_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    state, log = begun_at(tmp_path)
    txid = log.txid(2, 1)
    state.begin_commit(txid)
    state.multi_put([("man",), ("dog",)], [5, "many"])
    with pytest.raises(CorruptValueError, match=r"cannot write 'many' \(str\) into column 'curr' of type int64"):
        state.commit(txid)
    assert version_of(tmp_path) == 1
    commit(state, log, 2, 2, {"man": 1})
    assert values(state_at(tmp_path), "man", "dog") == [2, None]


def test_a_key_of_another_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptValueError, match="has 2 parts"):
        state_at(tmp_path).multi_get([("a", "b")])


def test_a_reader_names_a_key_that_is_no_text(tmp_path: Path) -> None:
    begun_at(tmp_path)
    with pytest.raises(CorruptValueError, match=r"'\\ud800' \(str\) into column 'word'"):
        reader_at(tmp_path).multi_get([("\ud800",)])


@pytest.mark.parametrize("value_type", [None, "decimal(4,1)"])
def test_a_value_that_cannot_be_written_is_named_with_its_key(tmp_path: Path, value_type: str | None) -> None:
    state = state_at(tmp_path, StateConf(key_fields=(("word", "string"),), value_type=value_type))
    state.begin_commit(1)
    with pytest.raises(CorruptValueError, match=r"write key \('b',\): "):
        state.multi_put([("a",), ("b",)], [Decimal(1), {1j}])


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
def test_a_deletion_in_a_commit_is_part_of_it_and_loses_no_put(
    tmp_path: Path, kind: StateType, conf: StateConf
) -> None:
    backing = map_at(tmp_path, kind, conf)
    backing.multi_put([("man",), ("dog",), ("cow",)], [stored(kind, 1)] * 3)
    backing.begin(Txid(2))
    backing.multi_put([("cow",)], [stored(kind, 9)])
    backing.multi_delete([("man",), ("dog",), ("cow",)])
    backing.multi_put([("dog",)], [stored(kind, 7)])
    expected = [None, stored(kind, 7), stored(kind, 9)]
    assert backing.multi_get([("man",), ("dog",), ("cow",)]) == expected
    assert keys_of(backing) == [("cow",), ("dog",)]
    assert map_at(tmp_path, kind, conf).multi_get([("man",)]) == [stored(kind, 1)]
    backing.end(Txid(2))
    for one in (backing, map_at(tmp_path, kind, conf)):
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
