"""DeltaSpout: tables that cannot be read as a stream, or not any more, are refused with what was found and the choices."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spouts import DeltaSpout
from spouts.delta.table_log import TableLog
from tests.spouts.delta.test_delta_versions import FEED, actions, append, entry_of, ids, numbers
from tests.spouts.reading import batches, begun, definitions, first_batch, refuse_both, rows_of
from trident.errors import ReplayMismatchError, SpoutError, TopologyError


def change(table: Path, version: int, kind: str, **said: Any) -> None:
    found = actions(table, version)
    for action in found:
        if kind in action:
            action[kind].update(said)
    entry_of(table, version).write_text("".join(json.dumps(action) + "\n" for action in found))


def refuses_to_begin(table: Path, match: str, *fields: str, **options: Any) -> None:
    with pytest.raises(SpoutError, match=match):
        DeltaSpout(table, *fields, **options).get_coordinator({}).initialize_transaction(1, None)


@pytest.mark.parametrize(
    ("what", "operation"), [("delete", "DELETE"), ("update", "UPDATE"), ("overwrite", "WRITE"), ("restore", "RESTORE")]
)
def test_a_version_that_removes_rows_is_refused_after_what_is_before_it_was_read(
    tmp_path: Path, what: str, operation: str
) -> None:
    append(tmp_path, 0, 4)
    append(tmp_path, 4, 6)
    if what == "delete":
        DeltaTable(tmp_path).delete("id = 1")
    elif what == "update":
        DeltaTable(tmp_path).update(updates={"name": "'x'"}, predicate="id = 1")
    elif what == "overwrite":
        write_deltalake(tmp_path, numbers(0, 1), mode="overwrite")
    else:
        DeltaTable(tmp_path).restore(0)
    spout = DeltaSpout(tmp_path, starting_version=0)
    coordinator, first = begun(spout)
    assert ids([rows_of(spout, coordinator, first)]) == [[0, 1, 2, 3, 4, 5]]
    said = rf"version 2 .* \({operation}\) removed rows, [12] files of them, .* Choose: mode='c"
    refuse_both(spout, coordinator, first, SpoutError, said)
    skipping = DeltaSpout(tmp_path, starting_version=0, on_removal="skip")
    assert [one["version"] for one in definitions(skipping.get_coordinator({}), first, 2)] == [2]


def test_changes_that_a_table_did_not_keep_are_refused(tmp_path: Path) -> None:
    append(tmp_path, 0, 4)
    DeltaTable(tmp_path).update(updates={"name": "'x'"}, predicate="id = 1")
    said = r"version 1 .* \(UPDATE\) changed rows, and the table did not keep .*Feed=true on"
    refuses_to_begin(tmp_path, said, mode="changes", starting_version=1)
    DeltaTable(tmp_path).alter.set_table_properties(FEED)
    DeltaTable(tmp_path).update(updates={"name": "'y'"}, predicate="id = 1")
    (found,) = batches(DeltaSpout(tmp_path, mode="changes", starting_version=2))
    assert sorted(row[1:4] for row in found) == [("x", "update_preimage", 3), ("y", "update_postimage", 3)]


def test_a_file_that_vacuum_deleted_is_named(tmp_path: Path) -> None:
    append(tmp_path, 0, 4)
    DeltaTable(tmp_path).delete("id = 1")
    DeltaTable(tmp_path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    spout = DeltaSpout(tmp_path, starting_version=0, on_removal="skip")
    coordinator, first = first_batch(spout)
    with pytest.raises(
        SpoutError, match=r"the file part-.* of version 0 of the Delta table .* is gone: .* VACUUM deleted it"
    ):
        rows_of(spout, coordinator, first)
    assert ids(batches(DeltaSpout(tmp_path))) == [[0, 2, 3]]


def test_a_file_that_was_replaced_or_damaged_is_refused(tmp_path: Path) -> None:
    append(tmp_path, 0, 4)
    spout = DeltaSpout(tmp_path)
    coordinator, first = first_batch(spout)
    (file,) = tmp_path.glob("*.parquet")
    data = file.read_bytes()
    file.write_bytes(b"no Parquet")
    with pytest.raises(ReplayMismatchError, match=rf"has 10 bytes now, and had {len(data)} when it was written"):
        rows_of(spout, coordinator, first)
    file.write_bytes(data[:4] + b"\xff" * 200 + data[204:])
    with pytest.raises(SpoutError, match="the file .* of version 0 of the Delta table .* cannot be read: "):
        rows_of(spout, coordinator, first)
    file.write_bytes(data)
    assert len(rows_of(spout, coordinator, first)) == 4


@pytest.mark.parametrize("versions", [1, 2, 5])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_table_that_was_made_again_is_refused(tmp_path: Path, versions: int, is_restarted: bool) -> None:
    append(tmp_path / "t", 0, 4)
    append(tmp_path / "t", 4, 8)
    spout = DeltaSpout(tmp_path / "t")
    coordinator, first = first_batch(spout)
    shutil.rmtree(tmp_path / "t")
    for start in range(versions):
        append(tmp_path / "t", start, start + 1)
    again = spout.get_coordinator({}) if is_restarted else coordinator
    with pytest.raises(
        ReplayMismatchError, match="was read up to version 1 as table .* and is another table now"
    ) as caught:
        again.initialize_transaction(2, first)
    assert str(DeltaTable(tmp_path / "t").metadata().id) in str(caught.value)


def test_a_table_that_was_set_back_or_is_gone_is_refused(tmp_path: Path) -> None:
    append(tmp_path / "t", 0, 4)
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    append(tmp_path / "t", 4, 8)
    spout = DeltaSpout(tmp_path / "t")
    coordinator, first = first_batch(spout)
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(SpoutError, match="there is no Delta table at .*. Correct the path, or create it"):
        coordinator.initialize_transaction(2, first)
    shutil.copytree(tmp_path / "copy", tmp_path / "t")
    said = r"was read up to version 1 .* another table now \(version 0, .* restored"
    refuse_both(spout, coordinator, first, ReplayMismatchError, said)
    append(tmp_path / "t", 100, 101)  # version 1 again, but another one
    said = r"was read up to version 1 .* another table now \(version 1"
    refuse_both(spout, coordinator, first, ReplayMismatchError, said)


def test_a_log_that_was_cleaned_up_too_far_is_refused(tmp_path: Path) -> None:
    append(tmp_path, 0, 1)
    spout = DeltaSpout(tmp_path)
    coordinator, first = first_batch(spout)
    append(tmp_path, 1, 2)
    append(tmp_path, 2, 3)
    DeltaTable(tmp_path).create_checkpoint()
    for version in (0, 1):
        entry_of(tmp_path, version).unlink()
    said = "version 1 of the Delta table .* is no longer in its log: the log was cleaned up"
    refuse_both(spout, coordinator, first, SpoutError, said)
    refuses_to_begin(tmp_path, "starting_version=1 of the Delta table .* is no longer in its log", starting_version=1)
    assert ids(batches(DeltaSpout(tmp_path, starting_version=2))) == [[2]]


def test_a_store_that_does_not_say_what_the_table_was_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path, 0, 1, configuration=FEED)
    spout = DeltaSpout(tmp_path, mode="changes")
    (first,) = definitions(spout.get_coordinator({}))
    append(tmp_path, 1, 2)
    again, ask, asked = spout.get_coordinator({}), TableLog.table, list[int]()

    def answered_the_second_time(place: TableLog, version: int | None = None) -> DeltaTable:
        if version is not None:
            asked.append(version)
            if len(asked) == 1:
                raise SpoutError("no answer")
        return ask(place, version)

    monkeypatch.setattr(TableLog, "table", answered_the_second_time)
    with pytest.raises(SpoutError, match="no answer"):  # and not what it is now in place of what it was then
        again.initialize_transaction(2, first)
    (second,) = definitions(again, first, 2)
    assert [row[0] for row in rows_of(spout, again, second)] == [1]
    assert asked == [0, 0]


def test_a_column_that_changes_its_type_or_goes_is_named(tmp_path: Path) -> None:
    append(tmp_path, 0, 1)
    spout = DeltaSpout(tmp_path)
    coordinator, first = first_batch(spout)
    other = pa.table({"id": pa.array(["x"])})
    write_deltalake(tmp_path, other, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(
        SpoutError, match="column 'id' of the Delta table .* is string at version 1, and the stream has it as big"
    ):
        coordinator.initialize_transaction(2, first)
    named = DeltaSpout(tmp_path, "name: string", starting_version=0, on_removal="skip").get_coordinator({})
    begun = named.initialize_transaction(1, None)
    with pytest.raises(SpoutError, match=r"has no column 'name' at version 1; it has \['id'\]. Leave the field out"):
        named.initialize_transaction(2, begun)


def test_what_readers_do_not_know_is_refused_by_its_name(tmp_path: Path) -> None:
    append(tmp_path, 0, 1, configuration={"delta.appendOnly": "true"})
    coordinator = DeltaSpout(tmp_path, "id: bigint").get_coordinator({})
    (first,) = definitions(coordinator)

    def refused(message: str, kind: str, **said: Any) -> None:
        if kind == "add":
            append(tmp_path, 1, 2)
            change(tmp_path, 1, kind, **said)
        with pytest.raises(SpoutError, match=message):
            coordinator.initialize_transaction(2, first)
        entry_of(tmp_path, 1).unlink()

    stored = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4}
    vector = {**stored, "sizeInBytes": 40, "cardinality": 2}
    refused(r"version 1 of .* has deletion vectors \(in part-.*\), .* APPLY \(PURGE\)", "add", deletionVector=vector)
    refused(r"has a file outside of the table, s3://other/a, as shallow clones do", "add", path="s3://other/a")
    protocol = {"protocol": {"minReaderVersion": 3, "readerFeatures": ["catalogManaged"], "minWriterVersion": 7}}
    entry_of(tmp_path, 1).write_text(json.dumps(protocol))
    refused("version 1 .* needs readers that know catalogManaged, and this one does not", "protocol")
    entry_of(tmp_path, 1).write_text("{no JSON\n")
    refused("the entry of version 1 in the log of the Delta table .* cannot be read", "")


def test_column_mapping_is_refused(tmp_path: Path) -> None:
    append(tmp_path, 0, 1)
    change(tmp_path, 0, "metaData", configuration={"delta.columnMapping.mode": "name"})
    said = r"maps its columns by name \(delta.columnMapping.mode\), so its files have other names"
    refuses_to_begin(tmp_path, said, "id: bigint")


def test_a_removal_without_partition_values_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path, numbers(0, 2), partition_by=["name"], configuration=FEED)
    DeltaTable(tmp_path).delete()
    found = [action for action in actions(tmp_path, 1) if "cdc" not in action]
    entry_of(tmp_path, 1).write_text("".join(json.dumps(action) + "\n" for action in found))
    change(tmp_path, 1, "remove", partitionValues=None)
    said = "version 1 .* removed name=n.* and does not say the value of its partition column 'name'"
    refuses_to_begin(tmp_path, said, mode="changes", starting_version=1)


def test_a_wrong_argument_or_place_is_refused(tmp_path: Path) -> None:
    for fields in (None, "id: bigint"):
        with pytest.raises(SpoutError, match="there is no Delta table at .*nowhere"):
            DeltaSpout(tmp_path / "nowhere", fields).get_coordinator({})
    append(tmp_path, 0, 1)
    with pytest.raises(TopologyError, match=r"field 'town' has no type, and the Delta table .* has no such column"):
        DeltaSpout(tmp_path, "id, town")
    refuses_to_begin(tmp_path, "has no column 'town' at version 0", "town: string")
    refuses_to_begin(
        tmp_path, "starting_version=5, but the newest version of the Delta table .* is 0", starting_version=5
    )
    for name, value, part in (
        ("mode", "cdf", "mode='cdf' of DeltaSpout: give 'append' or 'changes'"),
        ("on_removal", "ignore", "on_removal='ignore' of DeltaSpout: give 'error', 'skip' or 'added_files'"),
        ("starting_version", "first", "starting_version='first' of DeltaSpout: give .* 0, 'earliest' or 'latest'"),
        ("starting_version", -1, "starting_version=-1 of DeltaSpout: give a whole number of at least 0"),
        ("max_batch_files", 0, "max_batch_files=0 of DeltaSpout: give a whole number of at least 1"),
    ):
        with pytest.raises(ValueError, match=part):
            DeltaSpout(tmp_path, **{name: value})  # type: ignore[arg-type]
