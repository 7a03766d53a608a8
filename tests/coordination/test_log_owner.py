"""Who writes: held logs, takeovers and claims at every awkward moment, within one process."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import ClassVar

import pytest

from tests.coordination.log_samples import TOPOLOGY, commit, newest, reopened
from trident.coordination import lock
from trident.coordination.log_reader import LogReader
from trident.coordination.transaction_log import FileLog, LogFile
from trident.errors import FencedError, LogError


def test_closing_frees_the_log_though_a_process_that_is_being_started_still_has_the_file(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY)
    inherited = os.dup(log._claim._fd)
    log.close()
    try:
        assert reopened(path).epoch == 2
    finally:
        os.close(inherited)


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


def test_a_writer_whose_directory_was_restored_from_a_copy_stops(path: Path) -> None:
    log = FileLog.open(path, TOPOLOGY)
    log.append(commit(1))
    shutil.copytree(path, path.parent / "copy")
    log.append(commit(2))
    shutil.rmtree(path)
    (path.parent / "copy").rename(path)
    for _ in range(2):
        with pytest.raises(
            FencedError, match=r"the claim epoch-00000001 is a different file now \(is log_dir a copy\?\)"
        ):
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
