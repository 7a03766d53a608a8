"""Rows as files: what tasks write, what tasks read, and files that are not what they were."""

from __future__ import annotations

import itertools
import sys
import zlib
from pathlib import Path

import pytest

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
from trident.errors import ReplayMismatchError, SpoutError

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


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{", encoding="utf-8")
    with pytest.raises(
        SpoutError, match=r"manifest.json cannot be read as the manifest of a DataFrame's rows: JSONDec"
    ):
        read_manifest(str(tmp_path))


@pytest.mark.quick
def test_a_module_that_workers_lack_leads_to_their_python() -> None:
    raised = RuntimeError("task failed\nTraceback (most recent call last):\nModuleNotFoundError: No module named 'x'")
    assert said_by_spark(raised) == (
        f"ModuleNotFoundError: No module named 'x'. Is {sys.executable} the Python of Spark's workers? "
        "If not, set PYSPARK_PYTHON to it before Spark starts"
    )
