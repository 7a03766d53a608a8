"""Chunks: rows of a DataFrame as files that Spark's tasks write, and that the tasks of a topology read.

The driver gets one line for each chunk and never the rows. A task that Spark runs twice writes its files twice, under
different names, and only the files of the run that counts are named in its result. A folder has one manifest, which says which
chunks belong together, and whose they are; it only changes to "the rows are deleted".
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from spouts.files.ranges import cut_evenly
from trident.alignment import align
from trident.arrow import schema_of
from trident.errors import CheckpointMismatchError, ReplayMismatchError, SpoutError, describe
from trident.fields import Fields
from trident.servers.local_processes import sync_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COMPRESSION = "zstd"
_COLUMNS = ["partition", "number", "file", "rows", "bytes", "length", "crc"]
_WRITTEN = ", ".join(f"{name} {'string' if name == 'file' else 'bigint'}" for name in _COLUMNS)
_VERSION = 1
_NAME = "manifest.json"
_ROWS = "rows-"
_LONGEST = 500


class Chunk(NamedTuple):
    """A file with rows."""

    file: str  # its name in the folder of all chunks
    rows: int
    bytes: int  # in memory
    length: int  # of the file
    crc: int  # of the file


class ChunkLimits(NamedTuple):
    """The greatest number of rows, and of bytes in memory; a single row may have more bytes."""

    rows: int
    bytes: int


class ChunkPart(NamedTuple):
    """The part of a batch that one task reads."""

    folder: str
    chunks: tuple[Chunk, ...]


def write_dataframe(df: DataFrame, folder: str, fields: Fields, limits: ChunkLimits, owner: str) -> Manifest:
    """Let Spark write a DataFrame into a folder; return its manifest, or that of a faster process."""
    id_, rows_folder = new_rows_folder(folder)
    return write_manifest(folder, id_, fields, _write_rows(df, rows_folder, fields, limits), owner)


def _write_rows(df: DataFrame, folder: str, fields: Fields, limits: ChunkLimits) -> list[Chunk]:
    Path(folder).mkdir(parents=True, exist_ok=True)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        return write_chunks(folder, fields, limits, 0 if context is None else context.partitionId(), batches)

    columns = df.toDF(*(f"c{at}" for at in range(len(fields))))  # PySpark maps only columns whose names need no quotes
    chunks = [Chunk(*row[2:]) for row in sorted(columns.mapInArrow(write, _WRITTEN).collect())]
    for path in (Path(folder, chunk.file) for chunk in chunks):
        if not path.exists():
            raise SpoutError(
                f"a task of Spark wrote {path}, but the driver does not see that file. Name a folder that the driver and all "
                "machines of Spark see under the same path"
            )
    sync_directory(folder)
    return chunks


def write_chunks(
    folder: str, fields: Fields, limits: ChunkLimits, partition: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of one task; give a row that describes each chunk."""
    run, schema = uuid.uuid4().hex[:12], schema_of(fields)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(_pieces(batches, schema, limits)):
        file = f"{partition}-{number}-{run}.arrow"
        length, crc = _write(Path(folder, file), table)
        line = (partition, number, file, table.num_rows, table.nbytes, length, crc)
        yield pa.RecordBatch.from_arrays([pa.array([value]) for value in line], names=_COLUMNS)


def _pieces(batches: Iterable[pa.RecordBatch], schema: pa.Schema, limits: ChunkLimits) -> Iterator[pa.Table]:
    """Cut batches of any size into tables within the limits, each as large as they allow."""
    pieces: list[pa.Table] = []
    rows = size = 0
    for batch in batches:
        table = pa.Table.from_batches([batch])
        parts = zip(table.columns, schema, strict=True)
        rest = pa.Table.from_arrays(
            [align(column, one.type, one.name, "the DataFrame") for column, one in parts], schema=schema
        )
        while rest.num_rows:
            per_row = max(1, rest.nbytes // rest.num_rows)
            taken = rest.slice(0, max(0 if pieces else 1, min(limits.rows - rows, (limits.bytes - size) // per_row)))
            if taken.num_rows:
                pieces.append(taken)
                rows, size, rest = rows + taken.num_rows, size + taken.nbytes, rest.slice(taken.num_rows)
            if rest.num_rows:  # the piece is full
                yield pa.concat_tables(pieces)
                pieces, rows, size = [], 0, 0
    if pieces:
        yield pa.concat_tables(pieces)


def _write(path: Path, table: pa.Table) -> tuple[int, int]:
    """Write a file durably, because a definition will name it; return its length and checksum."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=_COMPRESSION)) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    _write_durably(path, data)
    return data.size, zlib.crc32(data)


def _write_durably(path: Path, data: bytes | pa.Buffer) -> None:
    with path.open("xb") as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            path.unlink()  # a later start would take it for the whole
            raise


def cut_chunks(folder: str, chunks: Sequence[Chunk], parallelism: int) -> list[ChunkPart]:
    """Cut chunks into at most `parallelism` parts of about equal size, in their order."""
    sizes = [max(1, chunk.bytes) for chunk in chunks]
    parts = cut_evenly(sizes, parallelism, sys.maxsize, is_whole=lambda at: True)
    return [ChunkPart(folder, tuple(chunks[at] for at, _, _ in part)) for part in parts]


class ChunkEmitter:
    """Reads the chunks of a part, each checked against what the batch was defined with."""

    is_quick = True  # it never waits, so the loop may call it

    def emit(self, part: ChunkPart) -> Iterator[pa.Table]:
        for chunk in part.chunks:
            yield _read(Path(part.folder, chunk.file), chunk)


def _read(path: Path, chunk: Chunk) -> pa.Table:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ReplayMismatchError(
            f"the batch was defined with {chunk.rows} rows in {path}, and this file is gone. Bring it back, or begin again "
            "with a new folder, a new log_dir and empty states. If Spark runs on several machines, all must see the folder"
        ) from None
    except OSError as error:
        raise SpoutError(f"cannot read {chunk.rows} rows of a DataFrame from {path}: {describe(error)}") from error
    if (len(data), zlib.crc32(data)) != (chunk.length, chunk.crc):
        raise ReplayMismatchError(
            f"{path} is not what it was when its batch was defined: {len(data)} bytes with checksum {zlib.crc32(data):08x} "
            f"in place of {chunk.length} with {chunk.crc:08x}. Bring the file back, or begin again with a new folder, a new "
            "log_dir and empty states"
        )
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


@dataclass(frozen=True)
class Manifest:
    """The rows of a DataFrame, as they were written once."""

    id: str  # unique; also in the name of the folder of the chunks
    fields: tuple[str, ...]  # names and types
    chunks: tuple[Chunk, ...]
    consumed: bool = False  # all rows were committed and deleted
    owner: str = ""  # see `owner_of`

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)

    def rows_folder(self, folder: str) -> str:
        return str(Path(folder, _ROWS + self.id))


def new_rows_folder(folder: str) -> tuple[str, str]:
    id_ = uuid.uuid4().hex
    return id_, str(Path(folder, _ROWS + id_))


def owner_of(conf: Mapping[str, Any]) -> str:
    """Return the stream and the topology that a coordinator was opened for; empty if it was opened by hand."""
    return f"the stream {conf['stream']!r} of the topology {conf['topology']!r}" if "topology" in conf else ""


def check_owner(folder: str, manifest: Manifest, owner: str) -> None:
    """Raise `CheckpointMismatchError` for rows of another stream."""
    if manifest.owner and owner and manifest.owner != owner:
        raise CheckpointMismatchError(
            f"the rows in {folder} belong to {manifest.owner}, and this is {owner}: it would read them in place of its own. "
            "Give each stream a folder of its own; or remove this one, if its rows are no longer needed"
        )


def read_manifest(folder: str) -> Manifest | None:
    path = Path(folder, _NAME)
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if values["version"] != _VERSION:
            raise ValueError(
                f"it is of version {values['version']}; this version of the software reads version {_VERSION}"
            )
        chunks = tuple(Chunk(*chunk) for chunk in values["chunks"])
        return Manifest(values["id"], tuple(values["fields"]), chunks, values["consumed"], values["owner"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpoutError(
            f"{path} cannot be read as the manifest of a DataFrame's rows: {describe(error)}. Restore it, or begin again "
            "with a new folder, a new log_dir and empty states"
        ) from error


def write_manifest(folder: str, id_: str, fields: Fields, chunks: Sequence[Chunk], owner: str = "") -> Manifest:
    """Write the manifest of a folder and return it; if another process was faster, return that one's and delete these rows."""
    made = Manifest(id_, tuple(fields.typed), tuple(chunks), owner=owner)
    with suppress(FileExistsError):
        _put(folder, made)
    sync_directory(folder)
    manifest = read_manifest(folder) or made
    if manifest.id != id_:
        # The rows of others stay: a driver that was replaced does not know which ones its successor is writing.
        shutil.rmtree(made.rows_folder(folder), ignore_errors=True)
    return manifest


def _put(folder: str, manifest: Manifest) -> None:
    """Write a manifest; `FileExistsError` if there is one."""
    new, path = _write_beside(folder, manifest), Path(folder, _NAME)
    try:
        path.hardlink_to(new)  # it is there whole or not at all, and unlike a rename this fails if there is one
    except FileExistsError:
        raise
    except OSError:  # no hard links here, as on many shared folders: a crash in this instant leaves one that is cut
        _write_durably(path, new.read_bytes())
    finally:
        new.unlink(missing_ok=True)


def remove_others(folder: str, id_: str) -> None:
    """Delete the rows of starts that ended before they had written a manifest, once a log has committed rows of this one."""
    for other in Path(folder).glob(f"{_ROWS}*"):
        if other.name != _ROWS + id_:
            shutil.rmtree(other, ignore_errors=True)


def remove_rows(folder: str, manifest: Manifest) -> None:
    """Delete the chunks, because all are committed; first the manifest says so, for a later start."""
    if not manifest.consumed:
        _write_beside(folder, replace(manifest, consumed=True)).replace(Path(folder, _NAME))
        sync_directory(folder)
    shutil.rmtree(manifest.rows_folder(folder), ignore_errors=True)


def _write_beside(folder: str, manifest: Manifest) -> Path:
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder, f".{_NAME}.{uuid.uuid4().hex}")
    _write_durably(path, json.dumps({"version": _VERSION, **vars(manifest)}).encode())
    return path


def said_by_spark(error: BaseException) -> str:
    """Return the line of an error that says what happened; Spark's texts hold whole stack traces."""
    from py4j.protocol import Py4JJavaError

    if isinstance(error, SpoutError):
        return str(error)
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else describe(error)
    _, failed, cause = text.partition("terminated with exception: ")  # the end of a streaming query, and what it was
    text = cause.partition("=== Streaming Query ===")[0] if failed else text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # An error of a Python worker: its traceback, the error itself at the end.
    raised = [line for line in lines if "Traceback" in line]
    line = lines[-1] if raised else lines[0]
    if line.startswith("ModuleNotFoundError"):
        return (
            f"{line[:_LONGEST]}. Is {sys.executable} the Python of Spark's workers? "
            "If not, set PYSPARK_PYTHON to it before Spark starts"
        )
    return line[:_LONGEST]
