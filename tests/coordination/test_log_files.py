"""The log in a directory: a life without trouble, compaction, a reader beside the writer."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from tests.coordination.log_samples import TOPOLOGY, commit, files, frames_of, newest, reopened, without_epoch
from trident.coordination import lock
from trident.coordination.log_reader import LogReader
from trident.coordination.log_state import LogState
from trident.coordination.transaction_log import FileLog
from trident.errors import LogError

# ---- a life without trouble ------------------------------------------------------------------------------------------


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


# ---- compaction ------------------------------------------------------------------------------------------------------


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
