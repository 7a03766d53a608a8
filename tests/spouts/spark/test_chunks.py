"""Rows as files: what tasks write and read, files that are not what they should be; which checkpoints belong to which log."""

import errno
import itertools
import os
import sys
import zlib
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spouts.spark.checkpoint_check import check_checkpoint, check_handed, digest_of, is_batch
from spouts.spark.chunks import (
    ChunkEmitter,
    ChunkLimits,
    ChunkPart,
    cut_chunks,
    new_rows_folder,
    read_manifest,
    remove_rows,
    said_by_spark,
    write_manifest,
)
from tests.spouts.reading import tuple_rows
from tests.spouts.spark.written_rows import FIELDS, batch_of, chunks_of, written
from trident.errors import CheckpointMismatchError, ReplayMismatchError, SpoutError

MUCH = 1 << 30


@pytest.mark.parametrize("cuts", [[0, 100], [0, 1, 99, 100], [0, 33, 33, 70, 100]])
@pytest.mark.parametrize("most", [1, 7, 33, 100, 1000])
def test_chunks_are_full_and_in_order_however_the_rows_arrive(cuts: list[int], most: int, tmp_path: Path) -> None:
    batches = [batch_of(start, end) for start, end in itertools.pairwise(cuts)]
    chunks = chunks_of(tmp_path, batches, ChunkLimits(most, MUCH))
    full, rest = divmod(100, most)
    assert [chunk.rows for chunk in chunks] == [most] * full + ([rest] if rest else [])
    tables = ChunkEmitter().emit(ChunkPart(str(tmp_path), tuple(chunks)))
    assert [row[0] for table in tables for row in tuple_rows(table)] == list(range(100))


def test_long_rows_make_small_chunks(tmp_path: Path) -> None:
    chunks = chunks_of(tmp_path, [batch_of(0, 10, "y" * 1000)], ChunkLimits(MUCH, 3500))
    assert [chunk.rows for chunk in chunks] == [3, 3, 3, 1]
    assert [chunk.rows for chunk in chunks_of(tmp_path, [batch_of(0, 3, "y" * 9999)], ChunkLimits(MUCH, 10))] == [1] * 3


def test_no_rows_make_no_chunk(tmp_path: Path) -> None:
    assert chunks_of(tmp_path, [batch_of(0, 0)], ChunkLimits(5, 5)) == []


@pytest.mark.parametrize("parallelism", [1, 2, 3, 20])
def test_parts_hold_each_chunk_once_and_in_order(parallelism: int, tmp_path: Path) -> None:
    chunks = chunks_of(tmp_path, [batch_of(0, 40)], ChunkLimits(4, MUCH))
    parts = cut_chunks(str(tmp_path), chunks, parallelism)
    assert [chunk for part in parts for chunk in part.chunks] == chunks
    assert len(parts) == min(parallelism, len(chunks))


def test_a_file_that_changed_or_is_gone_is_not_read(tmp_path: Path) -> None:
    (chunk,) = chunks_of(tmp_path, [batch_of(0, 9)], ChunkLimits(9, MUCH))
    part, path = ChunkPart(str(tmp_path), (chunk,)), tmp_path / chunk.file
    data = path.read_bytes()
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    changed = zlib.crc32(path.read_bytes())
    with pytest.raises(ReplayMismatchError, match=f"is not what it was .* checksum {changed:08x} in place of"):
        list(ChunkEmitter().emit(part))
    path.unlink()
    with pytest.raises(ReplayMismatchError, match="9 rows in .*, and this file is gone. Bring it back"):
        list(ChunkEmitter().emit(part))


@pytest.fixture(params=["with hard links", "without hard links"])
def links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system with hard links, and one without."""

    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    if request.param == "without hard links":
        monkeypatch.setattr(Path, "hardlink_to", refuse)


@pytest.mark.usefixtures("links")
def test_of_two_that_write_a_manifest_the_first_counts(tmp_path: Path) -> None:
    first, second = written(tmp_path, 10, 5), written(tmp_path, 20, 5)
    assert second == first == read_manifest(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", f"rows-{first.id}"]
    remove_rows(str(tmp_path), first)
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.usefixtures("links")
def test_a_replaced_driver_neither_removes_nor_replaces_its_successors_rows(tmp_path: Path) -> None:
    id_, rows_folder = new_rows_folder(str(tmp_path))
    chunks = chunks_of(Path(rows_folder), [batch_of(0, 10)], ChunkLimits(5, MUCH))  # the successor is writing
    first = written(tmp_path, 20, 5)
    assert [Path(rows_folder, chunk.file).exists() for chunk in chunks] == [True, True]
    assert write_manifest(str(tmp_path), id_, FIELDS, chunks) == first  # and finds that it was late
    assert written(tmp_path, 30, 5) == first  # as the replaced driver would, were it the later one
    assert [path.name for path in tmp_path.glob("rows-*")] == [f"rows-{first.id}"]


@pytest.mark.usefixtures("links")
@pytest.mark.parametrize("at", range(3))
def test_a_manifest_that_the_disk_refuses_is_written_by_the_next_start(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, calls = os.fsync, itertools.count()

    def refuse_one(fd: int) -> None:
        if next(calls) == at:
            os.ftruncate(fd, 5)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse_one)
        with suppress(OSError):
            write_manifest(str(tmp_path), "first", FIELDS, [])
    assert write_manifest(str(tmp_path), "second", FIELDS, []) == read_manifest(str(tmp_path))


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{", encoding="utf-8")
    with pytest.raises(SpoutError, match=r"manifest.json cannot be read as the manifest of a DataFrame's rows: JSONDe"):
        read_manifest(str(tmp_path))


@pytest.mark.quick
def test_a_module_that_workers_lack_leads_to_their_python() -> None:
    raised = RuntimeError("task failed\nTraceback (most recent call last):\nModuleNotFoundError: No module named 'x'")
    assert said_by_spark(raised) == (
        f"ModuleNotFoundError: No module named 'x'. Is {sys.executable} the Python of Spark's workers? "
        "If not, set PYSPARK_PYTHON to it before Spark starts"
    )


LAST = {"query": "q", "batch": 4, "offsets": "d4", "sources": ["files"]}


def checkpoint(query: str = "q", planned: int | None = 4, done: int | None = 4, *, since: int = 99) -> Any:
    """Return a checkpoint whose batches from `since` on are other ones than those of the log."""

    def digest(batch: int) -> str:
        return f"d{batch}" if batch < since else f"other{batch}"

    return SimpleNamespace(path="cp", query=query, planned=planned, done=done, digest=digest)


FITTING = {
    "the last batch is complete": checkpoint(),
    "a crash kept Spark from completing it": checkpoint(done=3),
    "Spark has planned the next one": checkpoint(planned=5),
}
UNFIT = {
    "cp is empty: it was deleted, or a different folder is named": checkpoint("", None, None),
    "cp is of query r: it was deleted and begun again": checkpoint("r", 0, None),
    "cp ends with batch 3: it was restored from an older copy": checkpoint(planned=3, done=3),
    "cp ends with batch None": checkpoint(planned=None, done=None),
    "batch 4 of the checkpoint cp is a different one": checkpoint(planned=6, done=5, since=3),
    "cp has given batch 5 to someone else": checkpoint(planned=5, done=5),
    "cp has given the batches 5 to 8 to someone else": checkpoint(planned=9, done=8),
}


@pytest.mark.parametrize("case", FITTING)
def test_a_checkpoint_of_the_log(case: str) -> None:
    check_checkpoint(FITTING[case], LAST, ["files"])


@pytest.mark.parametrize("case", UNFIT)
def test_a_checkpoint_that_does_not_belong_to_the_log(case: str) -> None:
    with pytest.raises(CheckpointMismatchError, match=rf"behind batch 4 of query q, but .*{case}.*discard_totals"):
        check_checkpoint(UNFIT[case], LAST, ["files"])


def test_another_source() -> None:
    with pytest.raises(
        CheckpointMismatchError, match="the query reads kafka where it read files: the offsets mean nothing there"
    ):
        check_checkpoint(checkpoint(), LAST, ["kafka"])


def test_a_new_log_needs_a_checkpoint_that_completed_nothing() -> None:
    for fresh in (checkpoint("", None, None), checkpoint("q", None, None), checkpoint("q", 0, None)):
        check_checkpoint(fresh, None, ["files"])
    with pytest.raises(
        CheckpointMismatchError, match=r"given the batches up to 0 of query q already, and this log has none of them"
    ):
        check_checkpoint(checkpoint("q", 0, 0), None, ["files"])


@pytest.mark.parametrize(
    ("last", "query", "batch", "fits"),
    [(None, "q", 0, True), (None, "q", 1, False), (LAST, "q", 5, True), (LAST, "q", 6, False), (LAST, "q", 4, False)],
)
def test_a_batch_that_is_handed_over_is_the_next_one(last: Any, query: str, batch: int, fits: bool) -> None:
    check_handed("cp", query, batch, last, adopts=True)
    if fits:
        check_handed("cp", query, batch, last, adopts=False)
    else:
        with pytest.raises(
            CheckpointMismatchError, match=f"Spark gives batch {batch} of query q, but the log continues with batch"
        ):
            check_handed("cp", query, batch, last, adopts=False)


def test_a_replayed_batch_is_known_by_all_three() -> None:
    assert is_batch(LAST, "q", 4, "d4")
    assert not any(is_batch(LAST, *other) for other in (("r", 4, "d4"), ("q", 5, "d4"), ("q", 4, "d5"), ("q", 4, None)))
    assert not is_batch(None, "q", 4, "d4")
    assert digest_of("v1\n1") != digest_of("v1\n2")
