"""Who writes: held logs, takeovers and claims at every awkward moment, within one process."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.coordination.log_samples import TOPOLOGY, commit, newest, reopened
from trident.coordination import lock
from trident.coordination.log_file import LogFile
from trident.coordination.records import DefineRecord
from trident.coordination.transaction_log import FileLog, LogReader
from trident.errors import AlreadyRunningError, FencedError, LogError, LogHeldError


def test_a_held_log_is_refused_and_the_holder_named(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY, clock=lambda: 86400.0)
    with pytest.raises(LogHeldError) as caught:
        FileLog.open(path, TOPOLOGY)
    assert f"held by process {os.getpid()} on " in str(caught.value)
    assert "(epoch 1, since 1970-01-02T00:00:00+00:00)" in str(caught.value)
    log.append(commit(1))
    log.close()
    assert reopened(path).txid == 1


def test_a_takeover_fences_the_first_at_its_next_append(path: Path) -> None:
    first = FileLog.open(path, TOPOLOGY)
    first.append(commit(1))
    second = FileLog.open(path, TOPOLOGY, takeover=True)
    assert (second.epoch, second.state.txid) == (2, 1)
    before = {file: file.read_bytes() for file in path.iterdir()}
    for _ in range(2):
        with pytest.raises(FencedError, match="this writer is epoch 1, but process .* has taken over"):
            first.append(commit(2))
    assert first.state.txid == 1
    with pytest.raises(FencedError):
        first.check_owner()
    assert {file: file.read_bytes() for file in path.iterdir()} == before
    second.append(commit(2, 2 << 20))
    second.close()
    assert reopened(path).winners.winner(2) == 2 << 20


def test_after_a_takeover_the_end_of_the_first_does_not_free_the_log(path: Path) -> None:
    first = FileLog.open(path, TOPOLOGY)
    second = FileLog.open(path, TOPOLOGY, takeover=True)
    first.close()
    with pytest.raises(LogHeldError, match="epoch 2"):
        FileLog.open(path, TOPOLOGY)
    second.append(commit(1))
    second.close()
    assert reopened(path).txid == 1


def test_closing_frees_the_log_though_a_process_that_is_being_started_still_has_the_file(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY)
    inherited = os.dup(log._claim._fd)
    log.close()
    try:
        assert reopened(path).epoch == 2
    finally:
        os.close(inherited)


def test_the_first_is_fenced_also_by_the_third(path: Path) -> None:
    first = FileLog.open(path, TOPOLOGY)
    logs = [FileLog.open(path, TOPOLOGY, takeover=True) for _ in range(3)]
    assert not (path / "epoch-00000002").exists()
    for log in [first, *logs[:-1]]:
        with pytest.raises(FencedError):
            log.append(commit(1))
    logs[-1].append(commit(1))
    assert logs[-1].state.txid == 1
    for log in [first, *logs]:
        log.close()


def test_what_the_first_appends_until_the_claim_is_taken_over_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = FileLog.open(path, TOPOLOGY)
    first.append(commit(1))
    real = lock.Claim.take

    def late(*args: Any) -> lock.Claim:
        first.append(commit(2))  # after the second has read the log, before it claims it
        return real(*args)

    monkeypatch.setattr(lock.Claim, "take", late)
    second = FileLog.open(path, TOPOLOGY, takeover=True)
    assert second.state.txid == first.state.txid == 2
    second.close()
    first.close()


class TakenOverWhileWriting(FileLog):
    """Another driver takes over in the middle of an append, before or after the record has reached the file."""

    class file_type(LogFile):  # noqa: N801  # takes the place of an attribute
        armed: ClassVar[str] = ""
        path: ClassVar[Path]
        second: ClassVar[list[FileLog]] = []

        def write(self, data: bytes) -> None:
            if self.armed == "before":
                self.take_over()
            super().write(data)
            if self.armed == "after":
                self.take_over()

        @classmethod
        def take_over(cls) -> None:
            cls.armed = ""
            cls.second.append(FileLog.open(cls.path, TOPOLOGY, takeover=True))


@pytest.mark.parametrize(("moment", "seen"), [("before", 1), ("after", 2)])
def test_a_takeover_in_the_middle_of_an_append_fences_it_and_loses_nothing_reported(
    path: Path, moment: str, seen: int
) -> None:
    first = TakenOverWhileWriting.open(path, TOPOLOGY)
    first.append(commit(1))
    reader = LogReader(path)
    reader.refresh()
    seam = TakenOverWhileWriting.file_type
    seam.path, seam.armed = path, moment
    with pytest.raises(FencedError):
        first.append(commit(2))
    second = seam.second.pop()
    assert (first.state.txid, second.state.txid, reader.refresh().txid) == (1, seen, seen)
    second.append(commit(seen + 1, 2 << 20))
    second.close()
    assert reopened(path).winners.winner(seen + 1) == 2 << 20


def test_a_reader_passes_over_a_record_that_a_claim_may_have_fenced(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY)
    log.append(commit(1))
    reader = LogReader(path)
    assert reader.refresh().txid == 1
    log.append(commit(2))
    log.append(commit(3))
    claim = lock.Claim.take(path, True, lambda: 0.0)  # of a driver that has not yet begun a segment
    assert reader.refresh().txid == 2
    assert LogReader(path).refresh().txid == 2
    claim.release()  # it ended before it did: whoever opens the log next finds the record
    assert LogReader(path).refresh().txid == 3
    assert reopened(path).txid == 3
    assert reader.refresh().txid == 3
    log.close()


def test_of_two_claims_of_one_epoch_the_second_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = FileLog.open(path, TOPOLOGY)
    real = lock.list_log

    def late(directory: Path) -> lock.Listing:
        seen = real(directory)
        monkeypatch.setattr(lock, "list_log", real)
        rivals.append(FileLog.open(path, TOPOLOGY, takeover=True))
        return seen

    rivals: list[FileLog] = []
    monkeypatch.setattr(lock, "list_log", late)
    with pytest.raises(LogHeldError, match=r"held by process \d+ .*epoch 2"):
        FileLog.open(path, TOPOLOGY, takeover=True)
    rivals[0].append(commit(1))
    assert rivals[0].state.txid == 1
    assert not list(path.glob("*.tmp"))
    rivals[0].close()
    first.close()


def test_a_claim_of_an_epoch_that_was_used_and_swept_meanwhile_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = FileLog.open(path, TOPOLOGY)
    real = lock.list_log

    def late(directory: Path) -> lock.Listing:
        seen = real(directory)
        monkeypatch.setattr(lock, "list_log", real)
        rivals.extend(FileLog.open(path, TOPOLOGY, takeover=True) for _ in range(3))
        assert not (path / "epoch-00000002").exists()
        return seen

    rivals: list[FileLog] = []
    monkeypatch.setattr(lock, "list_log", late)
    with pytest.raises(LogHeldError, match="epoch 4"):
        FileLog.open(path, TOPOLOGY, takeover=True)
    rivals[-1].append(commit(1))
    assert rivals[-1].state.txid == 1
    for log in [first, *rivals]:
        log.close()


def test_a_writer_whose_directory_was_removed_stops(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY)
    path.rename(path.parent / "elsewhere")
    with pytest.raises(FencedError, match="the claim epoch-00000001 is gone"):
        log.append(commit(1))
    log.close()


def test_a_writer_whose_directory_was_restored_from_a_copy_stops(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY)
    log.append(commit(1))
    shutil.copytree(path, path.parent / "copy")
    log.append(commit(2))
    shutil.rmtree(path)
    (path.parent / "copy").rename(path)
    for _ in range(2):
        with pytest.raises(FencedError, match=r"the claim epoch-00000001 is another file now \(is log_dir a copy\?\)"):
            log.append(commit(3))
    log.close()
    assert reopened(path).txid == 1


def test_a_writer_whose_segment_was_restored_from_a_copy_stops(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY)
    log.append(commit(1))
    segment = newest(path)
    copy = shutil.copy(segment, path.parent / "copy")
    log.append(commit(2))
    Path(copy).rename(segment)  # as rsync restores: only what differs, and in one step
    for _ in range(2):
        with pytest.raises(LogError, match=r"its newest segment was removed or replaced .* The record is not valid"):
            log.append(commit(3))
    log.close()
    assert reopened(path).txid == 1


def test_a_log_of_this_very_process_is_said_to_be_held_here(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY)
    with pytest.raises(AlreadyRunningError, match=rf"held by process {os.getpid()} .* very process.* Call stop\(\) on"):
        FileLog.open(path, TOPOLOGY)
    log.close()
    assert reopened(path).epoch == 2


def test_a_claim_nobody_can_read_is_still_named(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY)
    (path / "epoch-00000001").write_bytes(b"\xff")
    with pytest.raises(LogHeldError, match=r"held by an unknown process \(epoch 1\)"):
        FileLog.open(path, TOPOLOGY)
    log.close()


def test_a_child_forked_during_an_append_is_refused_and_not_stuck(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY)
    with log._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            try:
                log.append(commit(1))
            except LogError:
                log.close()
                os._exit(0)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    log.append(commit(1))
    log.close()


def test_a_record_that_is_not_durable_counts_only_with_one_that_the_owner_writes(path: Path) -> None:
    first = FileLog.open(path, TOPOLOGY)
    first.append(DefineRecord(1, "lines", "before"), durable=False)
    second = FileLog.open(path, TOPOLOGY, takeover=True)
    first.append(DefineRecord(2, "lines", "after"), durable=False)
    with pytest.raises(FencedError):
        first.append(commit(1))
    assert second.state.definitions == LogReader(path).refresh().definitions == {1: {"lines": "before"}}
    for log in (first, second):
        log.close()
