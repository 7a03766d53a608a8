"""A Delta state when things go wrong: kills, disks, power; and the same in a bucket."""

import errno
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spouts import FixedBatchSpout
from states.delta import DeltaBackingMap, DeltaOptions, DeltaState, delta_state_at
from states.delta import local_folder as _delta_folder
from states.delta.local_folder import added_files, is_whole
from tests.harness.topology_runs import start
from tests.harness.withheld import How, WithheldApart
from tests.states.delta.delta_bucket import Bucket, storage
from tests.states.delta.delta_states import (
    WORDS,
    Log,
    begun_at,
    changes,
    commit,
    count_men,
    reader_at,
    state_at,
    update,
    values,
    version_of,
)
from tests.states.delta.test_delta_staging import stage
from trident import TridentTopology
from trident.errors import BackendError, ConfigError, FencedError, StateError, StateMismatchError, StoreAwayError
from trident.log.log_reader import LogReader
from trident.operations import Count
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


def last_entry(path: Path) -> Path:
    return max((changes(path) / "_delta_log").glob("*.json"))


def test_a_damaged_log_is_refused(tmp_path: Path) -> None:
    begun_at(tmp_path, batches=2)
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
    for number, cut in enumerate([None, b"", data[:40], *(b"".join(lines[:n]) for n in range(1, len(lines)))]):
        for path in (tmp_path / f"{number}", changes(tmp_path / f"{number}-inside")):
            (path / "_delta_log").mkdir(parents=True)
            if cut is not None:
                (path / "_delta_log" / f"{0:020}.json").write_bytes(cut)
        for path in (tmp_path / f"{number}", tmp_path / f"{number}-inside"):
            assert values(reader_at(path), "man") == [None]
            commit(state_at(path), Log(), 1, 1, {"man": 1})
            assert values(state_at(path), "man") == [1]


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


@pytest.mark.parametrize("how", ["cut off", "overwritten", "missing"])
def test_a_data_file_that_is_damaged_or_missing_is_refused(tmp_path: Path, how: str) -> None:
    commit(state_at(tmp_path), Log(), 1, 1, {f"w{n}": n for n in range(100)})
    (file,) = map(Path, DeltaTable(changes(tmp_path)).file_uris())
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2] if how == "cut off" else data[:8] + b"\xff" * 300 + data[308:])
    if how == "missing":
        file.unlink()
    with pytest.raises(StateError, match="data files are missing" if how == "missing" else "cannot read .* damaged"):
        values(state_at(tmp_path), "w1")


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


class Disk:
    """Knows what was forced to the disk; calls back before each fsync; may refuse one, and then drops the pages."""

    def __init__(self) -> None:
        self.durable: dict[int, bytes] = {}
        self.lost: dict[int, IO[bytes]] = {}  # held open, or the number would be given to another file
        self.before: Callable[[Path], None] = lambda name: None
        self.refuses: Callable[[Path], bool] = lambda name: False

    def fsync(self, name: Path) -> None:
        self.before(name)
        node = name.stat().st_ino
        if name.is_dir() or node in self.lost:  # clean pages: nothing to write, and no error any more
            return
        if self.refuses(name):
            self.lost[node] = name.open("rb")
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(name))
        self.durable[node] = name.read_bytes()

    def left(self, table: Path, target: Path, keep_entries: bool) -> Path:
        """Copy what a power loss now may leave: durable bytes, of other files nothing, but perhaps whole log entries."""
        shutil.copytree(table, target)
        for name in table.rglob("*"):
            if name.is_file() and not (keep_entries and name.suffix == ".json"):
                (target / name.relative_to(table)).write_bytes(self.durable.get(name.stat().st_ino, b""))
        return target


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(_delta_folder, "_fsync", disk.fsync)
    yield disk
    for file in disk.lost.values():
        file.close()


def recovered(path: Path, log: Log, man: int) -> None:
    """A new driver goes on by itself, exactly."""
    after = Log()
    after.winners, after.expected = log.winners, log.expected
    commit(state_at(path), after, int(log.expected.txid if log.expected else 0) + 1, 9, {"man": 1})
    assert values(reader_at(path), "man", "lost") == [man + 1, None]


@pytest.mark.long
def test_whenever_power_fails_no_log_entry_is_without_its_data(tmp_path: Path, disk: Disk) -> None:
    table, log, seen = tmp_path / "t", Log(), list[str]()
    state = state_at(table, compact_after_commits=2, background_maintenance=False)

    committing = threading.get_ident()

    def lose_power(name: Path) -> None:
        if threading.get_ident() != committing:  # beside the commits the table is published, for other programs
            return
        seen.append(name.name)
        for keep_entries in (True, False):
            left = disk.left(table, tmp_path / f"left-{len(seen)}-{keep_entries}", keep_entries)
            before, disk.before = disk.before, lambda name: None
            recovered(left, log, man)
            disk.before = before

    for number in range(1, 5):
        man = number - 1
        disk.before = lose_power if number in (1, 4) else lambda name: None  # the 4th is compacted
        commit(state, log, number, 1, {"man": 1})
        disk.before = lambda name: None
    assert len(seen) > 10


def torn(path: Path, how: str) -> Path:
    """Cut the data of the last commit, as a table that another program wrote may be left; return its entry."""
    entry = max((changes(path) / "_delta_log").glob("*.json"))
    newest = max(changes(path).glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)
    data = newest.read_bytes()
    newest.write_bytes({"empty": b"", "cut": data[: len(data) // 2], "zeros": bytes(len(data))}.get(how, data))
    if how == "missing":
        newest.unlink()
    return entry


@pytest.mark.parametrize("how", ["empty", "cut", "zeros", "missing"])
def test_a_torn_commit_that_was_never_acknowledged_is_rolled_back_by_itself(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    state, log = begun_at(tmp_path)
    commit(state, log, 2, 1, {"man": 1, "lost": 1}, record=False)
    entry = torn(tmp_path, how)
    reader, writer = reader_at(tmp_path), state_at(tmp_path)
    for one in (reader, writer):
        assert one.read_sentinel() == log.expected
        assert values(one, "man", "lost") == [1, None]
        assert entry.exists()  # nothing is set aside before a log was asked
    recovered(tmp_path, log, 1)
    said = "lacks its data, as a power failure leaves it; it was never acknowledged and is set aside as"
    assert f"{said} {entry.name}" in caplog.text
    assert values(reader, "man") == [2]  # the reader goes on, past the entry that took the place of the torn one


@pytest.mark.parametrize("how", ["empty", "missing"])
def test_the_loss_of_an_acknowledged_commit_is_named_and_nothing_is_set_aside(tmp_path: Path, how: str) -> None:
    _, log = begun_at(tmp_path, batches=2)
    entry = torn(tmp_path, how)
    with pytest.raises(StateError, match="data files are missing|damaged"):
        values(reader_at(tmp_path), "man")
    for _ in range(2):
        with pytest.raises(StateMismatchError, match="log expects batch 2 .* store has batch 1"):
            state_at(tmp_path).begin_commit(log.txid(3, 1))
    assert entry.exists()
    assert version_of(tmp_path) == 2


def test_a_topology_starts_by_itself_on_a_table_with_a_torn_commit(tmp_path: Path) -> None:
    def run(batches: int) -> dict[str, int]:
        topology = TridentTopology("t")
        words = topology.new_stream("s", FixedBatchSpout("word: string", 1, *[("man",)] * batches)).group_by("word")
        words.persistent_aggregate(DeltaState.opaque(tmp_path / "t"), Count(), "count", state_name="counts")
        with start(topology, "in_process", log_dir=str(tmp_path / "log")) as running:
            running.process_all_available()
            return dict(running.state("counts").get_tuples())

    assert run(2) == {"man": 2}
    state = state_at(tmp_path / "t", StateConf("t", "counts", WORDS.key_fields, "bigint"))
    recorded = LogReader(tmp_path / "log").refresh()
    lost = Txid(3, (2 << 20) - 1, recorded.winners, recorded.incarnation, state.read_sentinel())
    state.begin_commit(lost)
    state.multi_put([("lost",)], [1])
    state.commit(lost)
    torn(tmp_path / "t", "empty")
    assert run(5) == {"man": 5}


@pytest.mark.parametrize("refused", [".json", ".parquet"])
def test_an_fsync_that_failed_is_not_believed_when_it_succeeds_the_next_time(
    tmp_path: Path, disk: Disk, refused: str
) -> None:
    table, log = tmp_path / "t", Log()
    state, failures = state_at(table), [1]
    commit(state, log, 1, 1, {"man": 1})
    disk.refuses = lambda name: refused in name.suffixes and bool(failures) and bool(failures.pop())
    if refused == ".parquet":  # no log entry names it: the replay writes another one
        with pytest.raises(BackendError, match="the batch may be replayed"):
            commit(state, log, 2, 1, {"man": 1})
    count_men(state, log, (2, 3), 2)
    assert disk.lost
    recovered(disk.left(table, tmp_path / "left", keep_entries=False), log, 3)


def test_a_disk_that_refuses_repeatedly_fails_the_batch_until_it_takes_the_bytes(tmp_path: Path, disk: Disk) -> None:
    table, log = tmp_path / "t", Log()
    state = state_at(table)
    commit(state, log, 1, 1, {"man": 1})
    disk.refuses = lambda name: ".json" in name.suffixes
    for attempt in (1, 2):
        with pytest.raises(BackendError, match="cannot fsync Delta table .*Input/output error"):
            commit(state, log, 2, attempt, {"man": 1})
    disk.refuses = lambda name: False
    commit(state, log, 2, 3, {"man": 1})
    recovered(disk.left(table, tmp_path / "left", keep_entries=False), log, 2)


@pytest.mark.parametrize("left", [0, 200])
def test_a_checkpoint_that_a_power_failure_cut_is_set_aside_and_nothing_is_lost(tmp_path: Path, left: int) -> None:
    _, log = begun_at(tmp_path, checkpoint_interval=2, background_maintenance=False, batches=3)
    (checkpoint,) = (changes(tmp_path) / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:left])
    recovered(tmp_path, log, 3)
    assert not checkpoint.exists()


def test_a_checkpoint_is_on_the_disk_before_the_entries_it_holds_are_deleted(tmp_path: Path, disk: Disk) -> None:
    state, log, forced = state_at(tmp_path, checkpoint_interval=2, background_maintenance=False), Log(), list[str]()
    commit(state, log, 1, 1, {"man": 1})
    for entry in (changes(tmp_path) / "_delta_log").glob("*.json"):
        os.utime(entry, (entry.stat().st_mtime - 48 * 3600,) * 2)
    disk.before = lambda name: forced.append(f"{name.name} {len(list(changes(tmp_path).rglob('*.json')))}")
    commit(state, log, 2, 1, {"man": 1})
    assert forced[-3:] == [f"{2:020}.checkpoint.parquet 3", "_last_checkpoint 3", "_delta_log 3"]


URL = "s3://bucket/states/words"


def state_in(bucket: Bucket, read_only: bool = False, **options: Any) -> Any:
    conf = StateConf("words", "counts", WORDS.key_fields, "bigint", read_only=read_only)
    spec = DeltaState.opaque(URL, storage_options=storage(bucket), **options)
    return spec.factory.make_state(conf, 0, 1)


def test_a_state_lives_in_a_bucket_with_the_options_given(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("states.delta.local_folder._fsync", lambda name: pytest.fail(f"{name} was forced to the disk"))
    state, log = state_in(bucket, compact_after_commits=4, background_maintenance=False), Log()
    for number in range(1, 8):
        commit(state, log, number, 1, {"man": 1, f"w{number}": number})
    facts = bucket.facts()
    assert facts["signers"] == ["a-user"]
    assert all(name.startswith("states/words/") for name in facts["names"])
    for one in (state, state_in(bucket), state_in(bucket, read_only=True)):
        assert values(one, "man", "w3", "none") == [7, 3, None]
        assert one.read_sentinel() == log.expected
    then = delta_state_at(URL, 2, WORDS, storage_options=storage(bucket))
    assert dict(then.get_tuples()) == {"man": 2, "w1": 1, "w2": 2}
    assert list(tmp_path.iterdir()) == []  # no folder called "s3:"


def test_writers_in_a_bucket_are_fenced(bucket: Bucket) -> None:
    old, new, log = state_in(bucket), state_in(bucket), Log()
    commit(old, log, 1, 1, {"man": 1})
    paused = log.txid(2, 1)
    old.begin_commit(paused)
    update(old, {"man": 100})
    commit(new, log, 2, 2, {"man": 1})
    with pytest.raises(FencedError):
        old.commit(paused)
    assert values(state_in(bucket), "man") == [2]


def test_a_bucket_that_refuses_is_an_error_that_a_replay_may_mend(bucket: Bucket) -> None:
    state, log = state_in(bucket), Log()
    commit(state, log, 1, 1, {"man": 1})
    txid = log.txid(2, 1)
    state.begin_commit(txid)
    update(state, {"man": 1})
    before = bucket.facts()
    bucket.refuse()
    with pytest.raises(BackendError, match="cannot commit to Delta table s3://bucket/states/words") as caught:
        state.commit(txid)
    assert caught.value.retryable
    assert bucket.facts() == before


@pytest.mark.parametrize("how", ["gone", "busy"])
def test_a_bucket_that_does_not_answer_is_no_damage(bucket: Bucket, how: str) -> None:
    state, log = state_in(bucket), Log()
    commit(state, log, 1, 1, {"man": 1})
    reader = state_in(bucket, read_only=True)
    if how == "gone":
        bucket.close()
    else:
        bucket.refuse("everything")
    for one in (reader, state, state_in(bucket)):
        with pytest.raises(BackendError, match="Delta table s3://bucket/states/words") as caught:
            values(one, "man")
        assert caught.value.retryable


def test_a_bucket_that_does_not_answer_for_a_state_beyond_memory_is_waited_for(bucket: Bucket) -> None:
    state, log = state_in(bucket, max_keys_in_memory=2, background_maintenance=False), Log()
    for number in range(1, 4):
        commit(state, log, number, 1, {"man": 1, f"w{number}": number})
    state.close()
    tables = state_in(bucket)._tables
    base = tables.at_path(read_only=True)
    base.refresh()
    index = base.index(tables.layout, base.holds())
    assert index.get([("w1",)])[0][-1] == 1
    bucket.refuse("everything")
    with pytest.raises(StoreAwayError, match="cannot read Delta table s3://bucket/states/words"):
        index.get([("w1",)])


@pytest.mark.long
@pytest.mark.parametrize("how", ["error", "dropped"])
def test_a_batch_is_not_called_gone_while_a_bucket_is_away(bucket: Bucket, how: How) -> None:
    state, log = state_in(bucket), Log()
    for number in (1, 2, 3):
        commit(state, log, number, 1, {"man": number})
    busy = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with closing(WithheldApart(urlsplit(bucket.url).port or 0, busy)) as proxy:
        through = {**storage(bucket), "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"}

        def read() -> dict[str, int]:
            return dict(delta_state_at(URL, 2, WORDS, storage_options=through).get_tuples())

        assert read() == {"man": 3}
        for number in range(1, proxy.withhold(0, how) + 1):
            proxy.withhold(number, how)
            with pytest.raises(StoreAwayError, match="s3://bucket/states/words"):
                read()


def test_a_file_url_is_a_local_folder_and_is_forced_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[Path] = []
    monkeypatch.setattr("states.delta.local_folder._fsync", forced.append)
    conf = StateConf("words", "counts", WORDS.key_fields, "bigint")
    for name in ("plain", "with space"):
        url = (tmp_path / name).as_uri()
        commit(DeltaState.opaque(url).factory.make_state(conf, 0, 1), Log(), 1, 1, {"man": 1})
        assert tmp_path / name / "_delta_log" in forced
        assert values(DeltaState.opaque(tmp_path / name).factory.make_state(conf, 0, 1), "man") == [1]


def test_a_url_that_lost_a_slash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without its second slash"):
        DeltaState.opaque(Path("s3://bucket/words")).factory.make_state(WORDS, 0, 1)


def test_a_task_stages_in_a_bucket_and_the_driver_publishes_there(bucket: Bucket) -> None:
    task, driver, log = state_in(bucket), state_in(bucket), Log()

    def files() -> int:
        return sum("/_staged/" in name for name in bucket.facts()["names"])

    for number in (1, 2, 3):
        txid = log.txid(number, 1)
        staged = stage(task, txid, {"man": number})
        assert files() == 1
        driver.publish(txid, staged)
        log.record(txid)
        assert values(state_in(bucket, read_only=True), "man") == [sum(range(number + 1))]
    assert files() == 0
    stage(task, log.txid(4, 1), {"man": 100})  # lost
    task.begin_commit(log.txid(4, 2).of_run("b" * 16))
    assert files() == 0
    for one in (task, driver):
        one.close()
