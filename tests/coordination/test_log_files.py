"""The log in a directory: a life without trouble, compaction, a reader beside the writer."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from tests.coordination.log_samples import ATTEMPT, TOPOLOGY, commit, files, frames_of, newest, reopened, without_epoch
from trident.coordination import lock
from trident.coordination.log_state import LogState
from trident.coordination.records import AdoptRecord, DefineRecord, LayoutRecord, ResetRecord
from trident.coordination.transaction_log import FileLog, LogReader, exists
from trident.errors import ForeignLogError, LogError, LogHeldError
from trident.state.txid import Sentinel

# ---- a life without trouble ------------------------------------------------------------------------------------------


def test_a_new_log_has_an_incarnation_and_no_batch(path: Path) -> None:
    assert not exists(path)
    log = FileLog.open(path, TOPOLOGY)
    assert (log.state.txid, log.state.topology, log.epoch, log.state.epoch) == (0, TOPOLOGY, 1, 1)
    assert len(log.state.incarnation) == 16
    assert LogReader.exists(path)
    log.check_owner()
    log.close()


def test_everything_is_there_after_a_restart(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY)
    log.append(LayoutRecord("counts", 4, "opaque"))
    log.append(DefineRecord(1, "lines", {"file": "a\udcff", "raw": b"\x00\xc1", "to": 10}))
    log.append(commit(1, payload=("a", 10)))
    log.append(DefineRecord(2, "lines", [1, 2]))
    log.append(AdoptRecord("other", 1, True, {0: (1, 0)}))
    log.append(ResetRecord("gone"))
    log.close()
    state = reopened(path)
    assert without_epoch(state) == without_epoch(log.state)
    assert state.spouts == {"lines": ["a", 10]}
    assert state.touched["counts"] == {1: Sentinel(state.incarnation, 1, ATTEMPT)}
    assert state.epoch == 2


def test_what_the_caller_changes_afterwards_is_not_in_the_log(path: Path) -> None:
    log, definition = FileLog.open(path, TOPOLOGY), {"rows": [1]}
    log.append(DefineRecord(1, "lines", definition))
    definition["rows"].append(2)
    log.close()
    assert log.state.definitions == reopened(path).definitions == {1: {"lines": {"rows": [1]}}}


def test_a_record_that_cannot_come_next_writes_nothing_and_the_log_goes_on(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY)
    before = files(path)
    with pytest.raises(ValueError, match="commit of batch 2 after batch 0; only batch 1 can"):
        log.append(commit(2))
    with pytest.raises(ValueError, match="cannot write this to the transaction log: .* Definitions of spouts are"):
        log.append(DefineRecord(1, "lines", {1, 2}))
    assert files(path) == before
    log.append(commit(1))
    log.close()
    assert reopened(path).txid == 1


def test_the_names_of_a_new_directory_and_of_those_above_it_are_durable_before_the_first_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []

    def fsync(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        real(fd)

    real = os.fsync
    monkeypatch.setattr(os, "fsync", fsync)
    path = tmp_path / "a" / "b" / "log"
    log = FileLog.open(path, TOPOLOGY)
    assert [each for each in synced if each.is_dir()] == [tmp_path.parent, *reversed(path.parents[:3]), path]
    log.close()
    # Whoever made it may have died before its name was durable.
    synced.clear()
    (path.parent / "log2").mkdir()
    FileLog.open(path.parent / "log2", TOPOLOGY).close()
    assert synced[0] == path.parent


def test_a_closed_log_refuses_records_and_closes_twice(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY)
    log.close()
    log.close()
    with pytest.raises(LogError, match="the transaction log .* is closed"):
        log.append(commit(1))
    with pytest.raises(LogError, match="is closed"):
        log.check_owner()


def test_closing_gives_back_every_file_descriptor(path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    reopened(path)
    before = descriptors()
    for _ in range(3):
        log = FileLog.open(path, TOPOLOGY, segment_bytes=1)
        with pytest.raises(LogHeldError):
            FileLog.open(path, TOPOLOGY)
        for txid in range(log.state.txid + 1, log.state.txid + 4):
            log.append(commit(txid))
        log.close()
    assert descriptors() == before


def test_a_log_of_another_topology_is_refused_and_its_writer_goes_on(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY)
    before = files(path)
    with pytest.raises(ForeignLogError, match="belongs to topology 'word-count', not to topology 'other'"):
        FileLog.open(path, "other", takeover=True)
    assert files(path) == before
    log.append(commit(1))
    assert log.state.txid == 1
    log.close()


# ---- compaction ------------------------------------------------------------------------------------------------------


def test_segments_are_switched_and_nothing_is_lost(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY, segment_bytes=1000)
    for txid in range(1, 151):
        log.append(commit(txid, payload="x" * 50))
    log.close()
    segments = lock.list_log(path).segments
    assert len(segments) == 2
    assert segments[1] == (1, segments[0].seq + 1)
    assert 3 < segments[1].seq < 60
    state = LogReader(path).refresh()
    assert state == log.state
    assert [each.txid for each in state.history] == list(range(51, 151))
    assert state.totals == {"tuples": 1500, "batches": 150}


def test_a_state_larger_than_a_segment_is_not_written_with_every_record(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY, segment_bytes=1)
    log.append(DefineRecord(100, "lines", "x" * 100_000))
    for txid in range(1, 21):
        log.append(commit(txid))
    log.close()
    found = lock.list_log(path).newest
    assert found is not None
    assert found.seq == 2
    assert LogReader(path).refresh() == log.state


def test_opening_sweeps_all_but_the_previous_segment(path: Path) -> None:
    for _ in range(4):
        reopened(path)
    assert sorted(files(path)) == ["00000003-0001.log", "00000004-0001.log", "epoch-00000004"]


def test_what_a_crash_in_the_middle_of_a_compaction_leaves_is_ignored_and_swept(
    path: Path, three: list[LogState]
) -> None:
    (path / "00000001-0002.log.tmp").write_bytes(b"half a header")
    (path / "epoch-00000001.0badcafe.tmp").write_bytes(b"")
    (path / "notes.txt").write_text("not ours")
    assert without_epoch(reopened(path)) == without_epoch(three[3])
    assert sorted(files(path)) == ["00000001-0001.log", "00000002-0001.log", "epoch-00000002", "notes.txt"]


def test_a_claim_without_a_segment_is_gone_over(path: Path, three: list[LogState]) -> None:
    (path / "epoch-00000007").write_text("{}")
    state = reopened(path)
    assert (state.epoch, without_epoch(state)) == (8, without_epoch(three[3]))


def test_an_old_file_that_cannot_be_removed_is_reported_and_does_no_harm(
    path: Path, three: list[LogState], caplog: pytest.LogCaptureFixture
) -> None:
    (path / "00000000-0001.log").mkdir()
    with caplog.at_level(logging.WARNING):
        state = reopened(path)
    assert state.txid == 3
    assert "cannot remove the old file 00000000-0001.log" in caplog.text


# ---- a reader beside the writer --------------------------------------------------------------------------------------


def test_a_reader_follows_appends_and_segments(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY, segment_bytes=300)
    reader = LogReader(path)
    for txid in range(1, 40):
        log.append(commit(txid))
        assert reader.refresh() == log.state
    log.close()


def test_a_reader_does_not_read_again_what_it_has(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY)
    log.append(commit(1))
    reader = LogReader(path)
    state, offset = reader.refresh(), reader.offset
    assert reader.refresh() is state
    log.append(commit(2))
    assert reader.refresh() is state
    assert reader.offset > offset
    log.close()
    assert (reader.segment, reader.offset) == ((1, 1), newest(path).stat().st_size)


def test_a_file_that_is_written_has_space_after_its_records_and_gives_it_back(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY)
    sizes = set()
    for txid in range(1, 1001):
        log.append(commit(txid))
        sizes.add(newest(path).stat().st_size)
    data = newest(path).read_bytes()
    assert 1 < len(sizes) < 5
    child = os.fork()
    if child == 0:
        os._exit(0)  # what a child closes at its birth must stay as it is
    os.waitpid(child, 0)
    assert newest(path).read_bytes() == data
    reader = LogReader(path)
    assert (reader.refresh().txid, reader.torn) == (1000, 0)
    log.close()
    assert newest(path).read_bytes() == data.rstrip(b"\0").ljust(reader.offset, b"\0")


def test_a_disk_that_gives_no_space_beforehand_is_written_to_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    log = FileLog.open(path, TOPOLOGY)
    log.append(commit(1))
    assert newest(path).stat().st_size == frames_of(newest(path))[-1].end
    log.close()
    assert reopened(path).txid == 1


def test_a_reader_goes_back_with_a_writer_that_took_a_record_back(path: Path, three: list[LogState]) -> None:
    reader = LogReader(path)
    assert reader.refresh() == three[3]
    os.truncate(newest(path), frames_of(newest(path))[-1].offset)
    assert reader.refresh() == three[2]


def test_a_segment_that_is_replaced_while_it_is_read_is_left(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = FileLog.open(path, TOPOLOGY, segment_bytes=1)
    real = lock.list_log

    def late(directory: Path) -> lock.Listing:
        seen = real(directory)
        monkeypatch.setattr("trident.coordination.log_reader.list_log", real)
        while real(directory).newest == seen.newest:
            log.append(commit(log.state.txid + 1))
        assert (path / "00000001-0001.log").exists()
        return seen

    monkeypatch.setattr("trident.coordination.log_reader.list_log", late)
    assert LogReader(path).refresh() == log.state
    log.close()


def test_a_segment_that_disappears_is_looked_for_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = FileLog.open(path, TOPOLOGY, segment_bytes=1)
    real = lock.list_log

    def late(directory: Path) -> lock.Listing:
        seen = real(directory)
        monkeypatch.setattr("trident.coordination.log_reader.list_log", real)
        for txid in range(1, 12):
            log.append(commit(txid))
        assert seen.newest is not None
        assert not (path / seen.newest.file).exists()
        return seen

    monkeypatch.setattr("trident.coordination.log_reader.list_log", late)
    assert LogReader(path).refresh() == log.state
    assert log.state.txid == 11
    log.close()


def test_a_reader_that_never_catches_up_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reopened(path)
    gone = lock.Listing([lock.SegmentName(1, 9)], [1], [])
    monkeypatch.setattr("trident.coordination.log_reader.list_log", lambda directory: gone)
    with pytest.raises(LogError, match="its segments were replaced 20 times while they were read"):
        LogReader(path).refresh()


def test_without_a_log_a_reader_says_so(path: Path) -> None:
    with pytest.raises(LogError, match="there is no transaction log in .*; a topology's first start makes one"):
        LogReader(path).refresh()
    path.mkdir(parents=True)
    assert not exists(path)
