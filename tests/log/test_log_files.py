"""The files of a log, whole and damaged."""

import errno
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.log.log_samples import TOPOLOGY, commit, files, frames_of, newest, reopened, without_epoch
from trident.errors import CorruptLogError, FencedError, LogError
from trident.log import lock
from trident.log import log_reader as reader_module
from trident.log.file_log import FileLog, LogFile
from trident.log.framing import HEAD_BYTES, Frame, decode, encode, frame
from trident.log.log_reader import LogReader, exists
from trident.log.log_state import LogState
from trident.log.records import CommitRecord, DefineRecord, Record


def test_names_of_directories_are_durable_before_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_a_crash_in_a_compaction_leaves_is_ignored_and_swept(path: Path, three: list[LogState]) -> None:
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


@pytest.mark.slow
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


def test_a_disk_without_space_beforehand_is_written_to_as_well(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("is_there", [True, False], ids=["replaced", "swept"])
def test_a_segment_that_goes_during_reading_is_left(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    log = FileLog.open(path, TOPOLOGY, segment_bytes=1)
    real = lock.list_log

    def late(directory: Path) -> lock.Listing:
        seen = real(directory)
        monkeypatch.setattr("trident.log.log_reader.list_log", real)
        assert seen.newest is not None
        file = path / seen.newest.file
        while real(directory).newest == seen.newest if is_there else file.exists():
            log.append(commit(log.state.txid + 1))
        assert file.exists() == is_there
        return seen

    monkeypatch.setattr("trident.log.log_reader.list_log", late)
    assert LogReader(path).refresh() == log.state
    log.close()


def test_a_reader_that_never_catches_up_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reopened(path)
    gone = lock.Listing([lock.SegmentName(1, 9)], [1], [])
    monkeypatch.setattr("trident.log.log_reader.list_log", lambda directory: gone)
    with pytest.raises(LogError, match="its segments were replaced 20 times while they were read"):
        LogReader(path).refresh()


def test_closing_frees_the_log_though_a_starting_process_still_has_the_file(path: Path) -> None:
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
def test_a_takeover_within_an_append_fences_it_and_loses_nothing_reported(path: Path, moment: str, seen: int) -> None:
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
    claim = lock.Claim.take(path, True)  # of a driver that has not yet begun a segment
    assert reader.refresh().txid == 2
    assert LogReader(path).refresh().txid == 2
    claim.release()  # it ended before it did: whoever opens the log next finds the record
    assert LogReader(path).refresh().txid == 3
    assert reopened(path).txid == 3
    assert reader.refresh().txid == 3
    log.close()


@pytest.mark.parametrize(
    ("is_whole", "error", "said"),
    [
        (True, FencedError, r"the claim epoch-00000001 is a different file now \(is log_dir a copy\?\)"),
        (False, LogError, "its newest segment was removed or replaced .* The record is not valid"),
    ],
    ids=["directory", "segment"],
)
def test_a_writer_whose_log_was_restored_from_a_copy_stops(
    path: Path, is_whole: bool, error: type[Exception], said: str
) -> None:
    log = FileLog.open(path, TOPOLOGY)
    log.append(commit(1))
    place, copy = path if is_whole else newest(path), path.parent / "copy"
    shutil.copytree(place, copy) if is_whole else shutil.copy(place, copy)
    log.append(commit(2))
    if is_whole:
        shutil.rmtree(path)
    copy.rename(place)  # as rsync restores: only what differs, and in one step
    for _ in range(2):
        with pytest.raises(error, match=said):
            log.append(commit(3))
    log.close()
    assert reopened(path).txid == 1


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


def test_a_log_that_cannot_begin_leaves_the_old_one(path: Path, three: list[LogState], armed: dict[str, int]) -> None:
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


def copied(path: Path, name: str) -> Path:
    return Path(shutil.copytree(path, path.parent / name))


def with_more(path: Path, *records: Record) -> tuple[Path, bytes, list[Frame]]:
    """Append records, definitions without a sync of their own; return the segment, its bytes and its frames."""
    log = FileLog.open(path, TOPOLOGY)
    for record in records:
        log.append(record, durable=isinstance(record, CommitRecord))
    log.close()
    segment = newest(path)
    return segment, segment.read_bytes(), frames_of(segment)


def define(txid: int, text: str = "x") -> DefineRecord:
    return DefineRecord(txid, "lines", text)


def test_a_last_record_torn_at_any_byte_is_cut(path: Path, three: list[LogState]) -> None:
    segment = newest(path)
    whole, last = segment.read_bytes(), frames_of(segment)[-1]
    for size in range(last.offset, last.end):
        segment.write_bytes(whole[:size])
        reader = LogReader(path)
        assert reader.refresh() == three[2], size
        assert reader.torn == len(whole[last.offset : size].rstrip(b"\0"))
    for size in range(last.offset, last.end, 7):
        target = path.parent / f"copy-{size}"
        target.mkdir()
        (target / segment.name).write_bytes(whole[:size])
        state = reopened(target)
        assert without_epoch(state) == without_epoch(three[2]), size
        assert LogReader(target).refresh() == state, size


def test_a_cut_record_is_told_and_is_gone(path: Path, three: list[LogState], caplog: pytest.LogCaptureFixture) -> None:
    segment = newest(path)
    segment.write_bytes(segment.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        log = FileLog.open(path, TOPOLOGY)
    (text,) = caplog.messages
    assert segment.name in text
    assert "a crash left unfinished; continuing after batch 2 without it" in text
    log.append(commit(3, 2 << 20))
    log.close()
    caplog.clear()
    assert reopened(path).winners.winner(3) == 2 << 20
    assert caplog.messages == []


def test_of_records_that_share_a_sync_none_counts_behind_a_lost_one(path: Path, three: list[LogState]) -> None:
    segment, whole, (_, *frames) = with_more(path, define(4, "x" * 100), define(5, "x" * 100), commit(4))
    for kept, lost in enumerate(frames):
        segment.write_bytes(whole[: lost.offset] + bytes(lost.end - lost.offset) + whole[lost.end :])
        reader = LogReader(path)
        found = reader.refresh()
        # No commit is acknowledged before all that was written before it is durable, so this one was not.
        assert (found.txid, sorted(found.definitions)) == (3, [4, 5][:kept])
        assert reader.torn == (0 if lost is frames[-1] else len(whole[lost.offset :].rstrip(b"\0")))
        assert without_epoch(reopened(copied(path, f"without-{lost.offset}"))) == without_epoch(found)
    segment.write_bytes(whole)
    log = FileLog.open(path, TOPOLOGY)
    assert (log.state.txid, sorted(log.state.definitions)) == (4, [5])
    log.close()


def test_a_record_after_a_sync_tells_that_one_before_it_is_damaged(path: Path, three: list[LogState]) -> None:
    segment, whole, frames = with_more(path, commit(4), define(5), define(6), commit(5), define(7))
    _, before, first, _, last, after = frames
    segment.write_bytes(whole[: before.offset] + bytes(first.end - before.offset) + whole[first.end :])
    with pytest.raises(CorruptLogError, match=f"another one follows at byte {after.offset}") as caught:
        FileLog.open(path, TOPOLOGY)
    assert caught.value.args[1] == before.offset
    # The disk has lost what was durable, and nothing after a sync is left that says so: the stores are ahead of this log
    # by two batches then, which the comparison with their sentinels finds.
    segment.write_bytes(whole[: before.offset] + bytes(last.end - before.offset))
    assert LogReader(path).refresh().txid == 3


def test_a_reader_that_saw_a_lost_end_goes_on_with_what_is_written_next(path: Path, three: list[LogState]) -> None:
    log = FileLog.open(path, TOPOLOGY)
    reader, segment = LogReader(path), newest(path)
    reader.refresh()
    log.append(DefineRecord(4, "lines", "x"), durable=False)
    log.append(commit(4))
    lost, whole = frames_of(segment)[-2], segment.read_bytes()
    segment.write_bytes(whole[: lost.offset] + bytes(lost.end - lost.offset) + whole[lost.end :])
    log.close()
    assert reader.refresh().txid == 3
    log = FileLog.open(path, TOPOLOGY)
    log.append(commit(4, 3 << 20))
    assert (reader.refresh().txid, reader.torn) == (4, 0)
    log.close()


def test_of_two_records_not_durable_a_crash_may_leave_a_part_of_the_second(path: Path, three: list[LogState]) -> None:
    segment, whole, (*_, lost, last) = with_more(path, define(4, "x" * 100), commit(4))
    for size in range(last.offset, last.end):
        for kept in (0, HEAD_BYTES):  # of the first; with its length one knows where the second begins
            hole = whole[: lost.offset + kept] + bytes(lost.end - lost.offset - kept)
            segment.write_bytes(hole + whole[last.offset : size])
            assert without_epoch(LogReader(path).refresh()) == without_epoch(three[3]), (size, kept)


def test_damage_to_records_of_one_sync_is_an_error_once_a_later_one_shows(path: Path, three: list[LogState]) -> None:
    segment, whole, (_, *frames) = with_more(path, define(4), commit(4), define(5))
    for damaged in frames[:2]:
        segment.write_bytes(whole[: damaged.end - 1] + bytes([whole[damaged.end - 1] ^ 1]) + whole[damaged.end :])
        with pytest.raises(CorruptLogError, match=f"another one follows at byte {frames[2].offset}") as caught:
            FileLog.open(path, TOPOLOGY)
        assert caught.value.args[1] == damaged.offset


@pytest.mark.slow
@pytest.mark.parametrize("followed", [False, True])
def test_a_file_that_is_written_while_it_is_read_is_not_damaged(
    path: Path, three: list[LogState], monkeypatch: pytest.MonkeyPatch, followed: bool
) -> None:
    log = FileLog.open(path, TOPOLOGY)
    file, reader, begin = newest(path), LogReader(path), newest(path).read_bytes()
    if followed:
        reader.refresh()
    log.append(DefineRecord(4, "lines", "x" * 20), durable=False)
    log.append(commit(4))
    log.append(DefineRecord(5, "lines", "x"), durable=False)
    written, read, cuts = file.read_bytes(), reader_module._read_from, list[int]()

    def read_meanwhile(name: Path, offset: int) -> tuple[bytes, int]:
        if not cuts:
            return read(name, offset)
        at = cuts.pop()
        return (begin[:at] + written[at:])[offset:], len(written)  # the beginning first

    monkeypatch.setattr(reader_module, "_read_from", read_meanwhile)
    for at in range(frames_of(file)[0].end, frames_of(file)[-1].end + 1):
        cuts.append(at)
        one = deepcopy(reader)
        assert one.refresh().txid in (3, 4), at
        assert one.refresh() == log.state
    log.close()


def test_any_flipped_bit_of_the_last_record_cuts_it(path: Path, three: list[LogState]) -> None:
    segment = newest(path)
    whole, last = segment.read_bytes(), frames_of(segment)[-1]
    for at in range(last.offset, last.end):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        segment.write_bytes(damaged)
        assert LogReader(path).refresh() == three[2], at
    assert reopened(path).txid == 2


@pytest.mark.slow
def test_any_flipped_bit_before_the_last_record_is_an_error(path: Path, three: list[LogState]) -> None:
    segment = newest(path)
    whole, frames = segment.read_bytes(), frames_of(segment)
    for at in range(frames[-1].offset):
        segment.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises(CorruptLogError, match="has a wrong checksum, and another one follows") as caught:
            LogReader(path).refresh()
        assert caught.value.args[1] == max(each.offset for each in frames if each.offset <= at)
    before = files(path)
    with pytest.raises(CorruptLogError, match=rf"damaged at byte {frames[-2].offset}: .* Nothing was changed"):
        FileLog.open(path, TOPOLOGY, takeover=True)
    assert files(path) == before


def test_a_damaged_record_before_a_torn_one_is_an_error(path: Path, three: list[LogState]) -> None:
    segment = newest(path)
    whole, before = bytearray(segment.read_bytes()), frames_of(segment)[-2]
    whole[before.end - 1] ^= 1
    for size in (before.end + 1, before.end + 5, len(whole) - 1):
        segment.write_bytes(whole[:size])
        with pytest.raises(CorruptLogError, match=f"another one follows at byte {before.end}"):
            FileLog.open(path, TOPOLOGY)


def test_a_damaged_header_is_an_error(path: Path) -> None:
    reopened(path)
    segment = newest(path)
    for damaged in (segment.read_bytes()[:-1], b""):
        segment.write_bytes(damaged)
        with pytest.raises(CorruptLogError, match="at byte 0: the header has a wrong checksum"):
            FileLog.open(path, TOPOLOGY)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not the header of a transaction log"),
        ({"seq": 7}, "the header is of segment 7 of epoch 1"),
        ({"state": {}}, "not a folded log"),
        ({"version": 3}, "format version 3; this version of the software reads version 1"),
    ],
)
def test_a_header_of_another_kind_is_an_error(path: Path, change: dict[str, Any], message: str) -> None:
    reopened(path)
    segment = newest(path)
    header = decode(frames_of(segment)[0].payload)
    segment.write_bytes(frame(encode({**header, **change}), 0))
    with pytest.raises(LogError, match=message):
        FileLog.open(path, TOPOLOGY)


def test_a_whole_record_that_cannot_follow_is_an_error(path: Path, three: list[LogState]) -> None:
    segment = newest(path)
    whole = segment.read_bytes()
    segment.write_bytes(whole + frame(encode(commit(9).to_data()), len(whole)))
    with pytest.raises(CorruptLogError, match=f"at byte {len(whole)}: commit of batch 9 after batch 3"):
        FileLog.open(path, TOPOLOGY)


def test_a_definition_that_holds_pieces_of_a_log_is_torn_like_any_other(path: Path, three: list[LogState]) -> None:
    log = FileLog.open(path, TOPOLOGY)
    log.append(DefineRecord(4, "lines", newest(path).read_bytes() * 2 + frame(b"x", 0) * 3))
    log.close()
    assert len(reopened(path).definitions[4]["lines"]) > 100
    segment = path / "00000002-0001.log"
    for name in (each.file for each in lock.list_log(path).segments if each.file != segment.name):
        (path / name).unlink()
    segment.write_bytes(segment.read_bytes()[:-1])
    assert LogReader(path).refresh().definitions == {}
