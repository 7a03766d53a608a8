"""Disks and directories that fail."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.coordination.log_samples import TOPOLOGY, commit, files, reopened, without_epoch
from trident.coordination.log_reader import LogReader, exists
from trident.coordination.log_state import LogState
from trident.coordination.transaction_log import FileLog, LogFile
from trident.errors import FencedError, LogError


def test_a_file_in_the_place_of_the_directory_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "log"):
        with pytest.raises(LogError, match=f"cannot keep a transaction log in {path}: it is not a directory"):
            FileLog.open(path, TOPOLOGY)
        assert not exists(path)
        with pytest.raises(LogError, match="cannot read the transaction log .*: Not a directory"):
            LogReader(path).refresh()


class FailingFile(LogFile):
    """A file on which one kind of call fails, leaving half of the data behind."""

    armed: ClassVar[dict[str, int]] = {}

    def write(self, data: bytes) -> None:
        if "write" in self.armed:
            super().write(data[: len(data) // 2])
        self._fail("write")
        super().write(data)

    def sync(self) -> None:
        self._fail("sync")
        super().sync()

    def cut(self, size: int) -> None:
        self._fail("cut")
        super().cut(size)

    def _fail(self, call: str) -> None:
        if call in self.armed:
            raise OSError(self.armed[call], os.strerror(self.armed[call]), "/somewhere")


class FailingLog(FileLog):
    file_type = FailingFile


@pytest.fixture
def armed() -> Iterator[dict[str, int]]:
    yield FailingFile.armed
    FailingFile.armed.clear()


def whole_records(path: Path) -> dict[str, bytes]:
    return {name: data.rstrip(b"\0") for name, data in files(path).items()}


@pytest.mark.parametrize(
    "faults",
    [
        {"write": errno.ENOSPC},
        {"sync": errno.EIO},
        {"write": errno.EROFS, "cut": errno.EROFS},
        {"sync": errno.EIO, "cut": errno.EIO},
    ],
)
@pytest.mark.parametrize("segment_bytes", [1 << 20, 1], ids=["in a segment", "at a switch"])
def test_a_record_that_cannot_be_made_durable_does_not_count(
    path: Path, armed: dict[str, int], faults: dict[str, int], segment_bytes: int
) -> None:
    log = FailingLog.open(path, TOPOLOGY, segment_bytes=segment_bytes)
    log.append(commit(1, payload="x" * 1000))
    before = whole_records(path)
    armed.update(faults)
    text = os.strerror(next(iter(faults.values())))
    with pytest.raises(LogError, match=f"cannot append to .*{text}. The record is not valid, batch 1 is the last"):
        log.append(commit(2))
    assert "cut" in faults or whole_records(path) == before
    armed.clear()
    with pytest.raises(LogError, match="batch 1 is the last one committed"):
        log.append(commit(2))
    assert log.state.txid == 1
    log.close()
    # A whole record that could be neither synced nor cut is found again; it is complete, so that does no harm.
    whole = set(faults) == {"sync", "cut"} and segment_bytes > 1
    assert reopened(path).txid == (2 if whole else 1)


def test_a_log_that_cannot_be_begun_leaves_the_old_one_as_it_was(
    path: Path, three: list[LogState], armed: dict[str, int]
) -> None:
    armed["sync"] = errno.ENOSPC
    with pytest.raises(LogError, match="cannot open the transaction log .*: No space left on device. log_dir must be"):
        FailingLog.open(path, TOPOLOGY)
    assert not list(path.glob("*.tmp"))
    armed.clear()
    assert without_epoch(reopened(path)) == without_epoch(three[3])


def test_a_failure_that_a_takeover_caused_is_told_as_one(path: Path, armed: dict[str, int]) -> None:
    class TakenOver(FailingFile):
        def _fail(self, call: str) -> None:
            if call in self.armed:
                (path / "epoch-00000002").write_text("{}")
            super()._fail(call)

    class Log(FileLog):
        file_type = TakenOver

    log = Log.open(path, TOPOLOGY)
    armed["write"] = errno.EIO
    for _ in range(2):
        with pytest.raises(FencedError, match="an unknown process .epoch 2. has taken over"):
            log.append(commit(1))
    log.close()


def append_many(log: FileLog, count: int) -> None:
    for txid in range(1, count + 1):
        log.append(commit(txid, payload="x" * 500))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs more rights")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_full_disk_stops_the_log_and_space_lets_it_go_on(small_disk: Path) -> None:
    path = small_disk / "log"
    log = FileLog.open(path, TOPOLOGY)
    with pytest.raises(LogError, match=r"No space left on device. The record is not valid") as caught:
        append_many(log, 1000)
    assert log.state.txid > 20
    assert f"batch {log.state.txid} is the last one committed" in str(caught.value)
    log.close()
    assert LogReader(path).refresh() == log.state
    with pytest.raises(LogError, match="cannot open the transaction log .*No space left on device"):
        FileLog.open(path, TOPOLOGY)
    assert LogReader(path).refresh() == log.state
    subprocess.run(["mount", "-o", "remount,size=1m", str(small_disk)], check=True)
    assert without_epoch(reopened(path)) == without_epoch(log.state)


def test_a_read_only_disk_is_named_and_can_be_read(small_disk: Path) -> None:
    path = small_disk / "log"
    log = FileLog.open(path, TOPOLOGY)
    log.append(commit(1))
    log.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(LogError, match="cannot open the transaction log .*: Read-only file system. log_dir must be"):
        FileLog.open(path, TOPOLOGY)
    assert LogReader(path).refresh() == log.state
