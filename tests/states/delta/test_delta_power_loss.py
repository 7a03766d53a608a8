"""What a power loss, or a disk that refuses, leaves of a Delta state: every acknowledged batch, and nothing torn."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.delta import local_folder as _delta_folder
from tests.harness.topology_runs import start
from tests.states.delta.delta_states import (
    WORDS,
    Log,
    changes,
    commit,
    count_men,
    reader_at,
    state_at,
    values,
    version_of,
)
from trident import TridentTopology
from trident.errors import BackendError, StateError, StateMismatchError
from trident.log.log_reader import LogReader
from trident.operations import Count
from trident.state.interfaces import StateConf
from trident.state.txid import Txid

pytestmark = pytest.mark.slow


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
    log = Log()
    state = state_at(tmp_path)
    commit(state, log, 1, 1, {"man": 1})
    commit(state, log, 2, 1, {"man": 1, "lost": 1}, record=False)
    entry = torn(tmp_path, how)
    reader, writer = reader_at(tmp_path), state_at(tmp_path)
    for one in (reader, writer):
        assert one.read_sentinel() == log.expected
        assert values(one, "man", "lost") == [1, None]
        assert entry.exists()  # nothing is set aside before a log was asked
    recovered(tmp_path, log, 1)
    assert (
        f"lacks its data, as a power failure leaves it; it was never acknowledged and is set aside as {entry.name}"
        in (caplog.text)
    )
    assert values(reader, "man") == [2]  # the reader goes on, past the entry that took the place of the torn one


@pytest.mark.parametrize("how", ["empty", "missing"])
def test_the_loss_of_an_acknowledged_commit_is_named_and_nothing_is_set_aside(tmp_path: Path, how: str) -> None:
    log = Log()
    state = state_at(tmp_path)
    count_men(state, log, (1, 2))
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
    state, recorded = (
        state_at(tmp_path / "t", StateConf("t", "counts", WORDS.key_fields, "bigint")),
        LogReader(tmp_path / "log").refresh(),
    )
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
    state, log = state_at(tmp_path, checkpoint_interval=2, background_maintenance=False), Log()
    count_men(state, log, (1, 2, 3))
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
