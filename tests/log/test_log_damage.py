"""Torn ends are cut, damage is an error, byte by byte."""

from __future__ import annotations

import logging
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.log.log_samples import TOPOLOGY, commit, files, frames_of, newest, reopened, without_epoch
from trident.errors import CorruptLogError, LogError
from trident.log import lock
from trident.log import log_reader as reader_module
from trident.log.file_log import FileLog
from trident.log.framing import HEAD_BYTES, Frame, decode, encode, frame
from trident.log.log_reader import LogReader
from trident.log.log_state import LogState
from trident.log.records import CommitRecord, DefineRecord, Record


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


def test_a_cut_record_is_reported_and_does_not_come_back(
    path: Path, three: list[LogState], caplog: pytest.LogCaptureFixture
) -> None:
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


def test_of_records_that_share_a_sync_none_counts_from_the_first_that_a_crash_lost(
    path: Path, three: list[LogState]
) -> None:
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


def test_damage_to_records_durable_together_is_an_error_once_a_later_one_shows(
    path: Path, three: list[LogState]
) -> None:
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
def test_any_flipped_bit_before_the_last_record_is_an_error_and_nothing_is_changed(
    path: Path, three: list[LogState]
) -> None:
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
