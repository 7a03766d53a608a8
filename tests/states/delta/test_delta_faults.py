"""What can be wrong with the folder of a Delta table, its disk and its options."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from states.delta import DeltaBackingMap, DeltaOptions, DeltaState
from states.delta.local_folder import added_files, is_whole
from tests.states.delta.delta_states import (
    WORDS,
    Log,
    begun_at,
    changes,
    commit,
    count_men,
    reader_at,
    state_at,
    values,
    version_of,
)  # fmt: skip
from trident.errors import BackendError, ConfigError, StateError
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Txid

pytestmark = pytest.mark.slow


def test_a_table_with_other_columns_is_refused_with_both_lists(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"word": ["a"], "n": [1]}))
    wanted = r"expected columns \['word: string', 'txid: long'.*found \['word: string', 'n: long'\]"
    with pytest.raises(StateError, match=wanted):
        values(state_at(tmp_path), "a")


def test_the_table_of_another_kind_or_type_is_refused(tmp_path: Path) -> None:
    commit(state_at(tmp_path / "a"), Log(), 1, 1, {"man": 1})
    with pytest.raises(StateError, match="expected columns"):
        values(state_at(tmp_path / "a", kind=StateType.TRANSACTIONAL), "man")
    typed = state_at(tmp_path / "b", StateConf(value_type="binary"))
    typed.begin_commit(1)
    typed.multi_put([("k",)], [b"x"])
    typed.commit(1)
    with pytest.raises(StateError, match="marked as trident opaque state; keys encoded, values typed"):
        state_at(tmp_path / "b", StateConf()).multi_get([("k",)])


def test_a_directory_of_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    state = state_at(tmp_path)
    with pytest.raises(StateError, match=r"holds \['letter.txt'\] and is not a Delta table"):
        state.begin_commit(Log().txid(1, 1))
    assert [found.name for found in tmp_path.iterdir()] == ["letter.txt"]


def test_a_creation_that_was_cut_off_is_taken_up_again(tmp_path: Path) -> None:
    for number, table in enumerate((tmp_path / "0", changes(tmp_path / "1"))):
        (table / "_delta_log").mkdir(parents=True)
        commit(state_at(tmp_path / f"{number}"), Log(), 1, 1, {"man": 1})
        assert values(state_at(tmp_path / f"{number}"), "man") == [1]


def last_entry(path: Path) -> Path:
    return max((changes(path) / "_delta_log").glob("*.json"))


def test_a_damaged_log_is_refused(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    count_men(state, log, (1, 2))
    (changes(tmp_path) / "_delta_log" / f"{1:020}.json").write_text("{garbage")
    with pytest.raises(StateError, match="cannot open Delta table .* damaged") as caught:
        values(state_at(tmp_path), "man")
    shown = "".join(traceback.format_exception(caught.value))
    assert "start_thread" not in shown
    assert "stack backtrace" not in shown


def test_an_entry_with_characters_that_end_a_line_elsewhere_is_whole() -> None:
    named = {"add": {"path": "a.parquet", "stats": "\u2028 \x85"}}
    entry = f"{json.dumps(named, ensure_ascii=False)}\n".encode()
    assert is_whole(entry, 2)
    assert added_files(entry) == [named["add"]]


def test_however_a_power_failure_cuts_the_last_entry_the_state_is_as_before_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, log = tmp_path / "t", Log()
    state = state_at(path)
    commit(state, log, 1, 1, {"man": 1})
    before = log.expected
    commit(state, log, 2, 1, {"man": 1, "dog": 1}, record=False)
    entry, open_reader = last_entry(path), reader_at(path)
    data = entry.read_bytes()
    entry.write_bytes(data[:7])
    assert values(open_reader, "man") == [1]
    assert not any(is_whole(data[:length], 2) for length in range(len(data)))
    assert is_whole(data, 2)
    ends = [at + step for at, byte in enumerate(data) if byte == ord("\n") for step in (0, 1)]
    for length in sorted({*range(0, len(data), 37), *ends, len(data) - 1}):
        entry.write_bytes(data[:length])
        reader = reader_at(path)
        assert (values(reader, "man", "dog"), reader.read_sentinel()) == ([1, None], before), length
        assert entry.exists()
        writer = state_at(path)
        assert (values(writer, "man", "dog"), writer.read_sentinel()) == ([1, None], before), length
        assert not entry.exists()
    assert f"set aside as {entry.name}.damaged" in caplog.text
    commit(state_at(path), log, 2, 2, {"man": 1})
    for one in (state_at(path), open_reader):  # the reader goes on, past the entry that took the damaged one's place
        assert values(one, "man", "dog") == [2, None]


def test_a_compaction_that_a_power_failure_cut_off_removes_nothing(tmp_path: Path) -> None:
    state, log = state_at(tmp_path, compact_after_commits=4, background_maintenance=False), Log()
    for number in range(1, 5):
        commit(state, log, number, 1, {"man": 1, f"w{number}": 1})
    entry = last_entry(tmp_path)
    data = entry.read_bytes()
    assert b'"remove"' in data
    lines = data.splitlines(keepends=True)
    for kept in range(len(lines)):
        entry.write_bytes(b"".join(lines[:kept]))
        assert values(state_at(tmp_path), "man", "w1", "w4") == [4, 1, 1], kept
        assert not entry.exists()


def test_a_creation_that_a_power_failure_cut_off_is_taken_up_again(tmp_path: Path) -> None:
    DeltaBackingMap(tmp_path / "a", StateType.OPAQUE, WORDS).begin(Txid(1))
    data = last_entry(tmp_path / "a").read_bytes()
    lines = data.splitlines(keepends=True)
    for number, cut in enumerate([b"", data[:40], *(b"".join(lines[:n]) for n in range(1, len(lines)))]):
        for path in (tmp_path / f"{number}", changes(tmp_path / f"{number}-inside")):
            (path / "_delta_log").mkdir(parents=True)
            (path / "_delta_log" / f"{0:020}.json").write_bytes(cut)
        for path in (tmp_path / f"{number}", tmp_path / f"{number}-inside"):
            assert values(reader_at(path), "man") == [None]
            commit(state_at(path), Log(), 1, 1, {"man": 1})
            assert values(state_at(path), "man") == [1]


def test_an_entry_of_another_program_is_not_taken_for_damaged(tmp_path: Path) -> None:
    log = Log()
    commit(state_at(tmp_path), log, 1, 1, {"man": 1})
    commit(state_at(tmp_path), log, 2, 1, {"man": 1})
    DeltaTable(changes(tmp_path)).optimize.compact()
    version = version_of(tmp_path)
    assert values(state_at(tmp_path), "man") == [2]
    assert version_of(tmp_path) == version


def test_each_commit_is_forced_to_the_disk_with_all_that_it_is_built_upon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[str] = []
    monkeypatch.setattr("states.delta.local_folder._fsync", lambda name: forced.append(name.name))
    table = tmp_path / "table"
    state, log = begun_at(table)
    (first,) = (Path(file).name for file in DeltaTable(changes(table)).file_uris())
    log_of = [f"{0:020}.json", "_delta_log"]
    created = [*log_of, table.name, tmp_path.name, *log_of, "changes", "_trident", table.name]
    assert forced == [*created, first, "changes", f"{1:020}.json", "_delta_log"]
    forced.clear()
    DeltaTable(changes(table)).delete("word = 'none'")
    commit(state, log, 2, 1, {"man": 1})
    assert f"{version_of(table):020}.json" in forced
    quick = state_at(tmp_path / "quick", fsync=False)
    state.wait_for_maintenance()
    forced.clear()
    commit(quick, Log(), 1, 1, {"man": 1})
    assert forced == []


CUTS = [lambda data: data[: len(data) // 2], lambda data: data[:8] + b"\xff" * 300 + data[308:]]


@pytest.mark.parametrize("damage", CUTS, ids=["cut off", "overwritten"])
def test_a_damaged_data_file_is_refused(tmp_path: Path, damage: Any) -> None:
    commit(state_at(tmp_path), Log(), 1, 1, {f"w{n}": n for n in range(100)})
    (file,) = map(Path, DeltaTable(changes(tmp_path)).file_uris())
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(StateError, match="cannot read Delta table .* damaged"):
        values(state_at(tmp_path), "w1")


def test_a_missing_data_file_is_refused(tmp_path: Path) -> None:
    commit(state_at(tmp_path), Log(), 1, 1, {"man": 1})
    for file in DeltaTable(changes(tmp_path)).file_uris():
        Path(file).unlink()
    with pytest.raises(StateError, match="data files are missing"):
        values(state_at(tmp_path), "man")


def test_a_path_that_cannot_be_made_is_a_backend_error() -> None:
    with pytest.raises(BackendError, match="cannot create Delta table /proc/trident-state"):
        state_at(Path("/proc/trident-state")).begin_commit(Log().txid(1, 1))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of 400 kB."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(tmp_path)], capture_output=True)
    if made.returncode:
        pytest.skip("needs the right to mount a file system")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)  # a thread of Delta may still hold a file open


def test_a_full_disk_fails_the_batch_and_leaves_the_state_as_it_was(small_disk: Path) -> None:
    path = small_disk / "table"
    state, log = begun_at(path)
    words = {f"{random.getrandbits(256):x}": 1 for _ in range(10_000)}
    with pytest.raises(BackendError, match="cannot commit to Delta table .*No space left on device") as caught:
        commit(state, log, 2, 1, words)
    assert caught.value.retryable
    assert "free some space on the disk; the batch may be replayed" in str(caught.value)
    assert dict(state_at(path).get_tuples()) == {"man": 1}
    commit(state, log, 2, 2, {"man": 1})
    assert values(state_at(path), "man") == [2]


def test_a_read_only_disk_is_a_backend_error_that_no_replay_mends(small_disk: Path) -> None:
    path = small_disk / "table"
    state, log = begun_at(path)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(BackendError, match="Read-only file system.*make the directory writable") as caught:
        commit(state, log, 2, 1, {"man": 1})
    assert not caught.value.retryable
    with pytest.raises(BackendError, match="cannot create"):
        state_at(small_disk / "new").begin_commit(Log().txid(1, 1))
    assert values(reader_at(path), "man") == [1]


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="vacuum_after_hours=0 of a Delta state: give a whole number of at least 1"):
        DeltaState.opaque("somewhere", vacuum_after_hours=0)
    assert DeltaOptions(vacuum_after_hours=None).snapshot_key == "$GLOBAL$"


FEW_FILES = """
import os, resource, sys
from tests.states.delta.delta_states import Log, commit, state_at, values
from trident.errors import BackendError

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + int(sys.argv[2]), hard))
try:
    commit(state_at(sys.argv[1]), Log(), 1, 1, {"man": 1})
except BackendError as error:
    print(error)
"""


@pytest.mark.parametrize("spare", [3, 6])
@pytest.mark.parametrize("is_there", [True, False])
def test_too_few_open_files_are_told_with_the_way_out(tmp_path: Path, spare: int, is_there: bool) -> None:
    if is_there:
        state_at(tmp_path / "table").begin_commit(Log().txid(1, 1))
    command = [sys.executable, "-c", FEW_FILES, str(tmp_path / "table"), str(spare)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Too many open files" in done.stdout
    assert "let this process have more files open (ulimit -n); the batch may be replayed" in done.stdout
