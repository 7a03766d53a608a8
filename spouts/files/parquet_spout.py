"""ParquetFileSpout: the rows of Parquet files, each exactly once, from files that are there and that come.

Files are immutable, and cut at row groups. Definitions are as of lines (`file_coordinator.py`). A range is the bytes from
where one row group begins to where another does; the last one goes to the end of the file. The checksum covers the footer,
which says where each column of each row group is, with its size and statistics.
"""

from __future__ import annotations

import datetime as dt
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Unpack

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spouts.files.file_coordinator import FileCoordinator, FileCut, FileFormat, Look, Rest
from spouts.files.file_listing import Paths
from spouts.files.line_spouts import FileSettings, FileSpout
from spouts.files.parsed_columns import leaves
from spouts.files.ranges import FileEmitter, FileRange, Piece, Position, open_error
from trident.alignment import align, check_readable, fields_of_schema, replace_leaves
from trident.arrow import schema_of
from trident.errors import BadDataError, ReplayMismatchError, SpoutError, TopologyError
from trident.fields import Fields, FieldsLike, names_shown
from trident.setting_types import Limit, check_arguments

ROWS = 131_072
_BUFFER = 1 << 20


class ParquetFileSpout(FileSpout):
    """Emits each row of Parquet files once. Files do not change; new ones may come. Transactional.

    Parameters
    ----------
    fields
        The columns to read; others are not read from the disk. A type that is not declared comes from the first file by
        path. None: all columns of that file.
    max_batch_rows
        The greatest number of rows of one batch, as well as `max_batch_bytes` (here 64 MiB by default, unpacked). The least
        that a batch takes is a row group.
    missing_columns
        What to do if a file lacks a field: `"error"`, or `"null"`.
    with_file
        Emit `file: string`, the path, after all other fields.
    paths, files
        As for `TextFileSpout`, but `pattern` is `*.parquet`. A file is read as soon as it has its footer.
    """

    @check_arguments
    def __init__(
        self,
        paths: Paths,
        fields: FieldsLike | None = None,
        *,
        max_batch_rows: Limit | None = None,
        missing_columns: Literal["error", "null"] = "error",
        with_file: bool = False,
        **files: Unpack[FileSettings],
    ) -> None:
        files.setdefault("max_batch_bytes", 64 << 20)
        super().__init__("Parquet", paths, "*.parquet", **files)
        self._refuse_tables()
        declared = self._typed_fields(None if fields is None else Fields(fields))
        bytes_per_row = self._max_batch_bytes / max_batch_rows if max_batch_rows else 0.0
        self._format, self._emitter = ParquetFiles(bytes_per_row), ParquetEmitter(declared, with_file, missing_columns)

    def get_coordinator(self, conf: Mapping[str, Any], now: Callable[[], float] | None = None) -> FileCoordinator:
        self._refuse_tables()
        return super().get_coordinator(conf, now)

    def _refuse_tables(self) -> None:
        for root in self._source.roots:
            if Path(root, "_delta_log").is_dir():
                raise SpoutError(
                    f"{root} is a Delta table: some of its files may be removed from it, and merged ones hold rows that "
                    "others had. Read it with DeltaSpout"
                )

    def _typed_fields(self, fields: Fields | None) -> Fields:
        if fields is not None and None not in fields.types:
            schema_of(fields)
            return fields
        first = next(iter(self._source.files()), None)
        if first is None:
            raise SpoutError(
                f"there is no Parquet file yet in {self._source} to take the types of the fields from; declare "
                'them, as in fields="id: bigint, name: string"'
            )
        try:
            with pq.ParquetFile(first) as file:
                schema = _read_schema(file)
        except pa.ArrowException as error:
            raise SpoutError(f"the types of the fields cannot be taken from {first}: {error}; declare them") from error
        except OSError as error:
            raise open_error(first, error, "cannot take the types of the fields") from error
        if fields is None:
            return fields_of_schema(schema)
        return typed_as(
            fields, schema.names, lambda name: fields_of_schema(pa.schema([schema.field(name)])).types[0], first
        )


class ParquetEmitter(FileEmitter):
    """Emits the rows of row groups; see `ParquetFileSpout`."""

    def __init__(self, fields: Fields, with_file: bool, missing_columns: str) -> None:
        super().__init__(fields, with_file=with_file)
        self._missing_columns = missing_columns

    def read(self, piece: Piece) -> Iterator[pa.Table]:
        path, what = piece.range.path, f"the Parquet file {piece.range.path}"
        try:
            with pa.OSFile(path) as source:
                footer = Footer.of(path, source.size(), source.read_at)
                if footer is None or footer.crc != piece.range.crc:
                    raise ReplayMismatchError(
                        f"the batch was {piece.range} of {what}, which has {source.size()} bytes now and another footer: it "
                        "was replaced. Put the file back as it was and start again"
                    )
                for columns, rows in read_groups(what, source, footer, piece, self._wanted, self._missing_columns):
                    yield self._table(columns, path, rows)
        except (OSError, pa.ArrowException) as error:  # Arrow raises either for a damaged file
            if isinstance(error, OSError) and error.errno is not None:
                raise
            way = "Put an undamaged file there, and start again"
            if isinstance(error, pa.ArrowNotImplementedError):  # the file is sound
                way = (
                    f"This is what pyarrow {pa.__version__} does not read: write the file in another way, or leave the column "
                    "out, and start again"
                )
            raise BadDataError(f"{what} cannot be read: {str(error).strip(' .')}. {way}") from error


def read_groups(
    what: str,
    source: pa.NativeFile,
    footer: Footer,
    piece: Any,
    wanted: pa.Schema,
    missing: str,
    reads_ahead: bool = False,
) -> Iterator[tuple[list[pa.Array], int]]:
    """Give the wanted columns of the row groups that begin in a piece, and how many rows they have.

    `what`, `source`, `footer`: the file, for messages, opened, and what its end says.
    `missing`: what it means if the file does not have a column: `"error"`, or `"null"`.
    `reads_ahead`: read whole row groups at once, for stores where each read takes long.
    """
    groups = footer.groups(piece.start, piece.end)
    if not groups:
        return

    def opened_with(int96: str) -> pq.ParquetFile:
        reading = {"coerce_int96_timestamp_unit": int96, "buffer_size": _BUFFER, "pre_buffer": reads_ahead}
        return pq.ParquetFile(source, metadata=footer.metadata, **reading)

    file = opened_with("us")
    schema = _read_schema(file)
    names = _columns_in(what, schema, wanted, missing)
    options = {"batch_size": ROWS, "row_groups": groups, "use_threads": False}
    int96 = [name for name in _int96_columns(file) if name in names]
    exact = opened_with("ns").iter_batches(columns=int96, **options) if int96 else None

    def column_as(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name not in names:
            return align(pa.nulls(len(batch), field.type), field.type, field.name, what)
        column, type_ = batch[field.name], schema.field(field.name).type
        # Moments in INT96 are local times to Arrow.
        column = column if column.type == type_ else column.cast(type_)
        kind = "int96" if field.name in int96 else "datetime"
        if _is_julian(file.metadata.metadata or {}, kind) and any(map(_is_early, leaves(column))):
            raise BadDataError(
                f"column {field.name!r} of {what} has days before 1582-10-15, or moments before 1900, which Spark wrote by the "
                "Julian calendar: they would be others here. Have Spark write the file again, with "
                f"spark.sql.parquet.{kind}RebaseModeInWrite=CORRECTED, or leave the column out"
            )
        return align(column, field.type, field.name, what)

    for batch in file.iter_batches(columns=names, **options):
        nanos: Any = None if exact is None else next(exact)
        for name in int96:  # by name: of a column "a" Arrow reads "a.b", too
            if any(map(_is_cut, leaves(batch[name]), leaves(nanos[name]))):
                raise BadDataError(
                    f"column {name!r} of {what} has a moment in INT96 with nanoseconds, which a timestamp does not have. Round "
                    "them to microseconds where they are written, or leave the column out"
                )
        yield [column_as(batch, field) for field in wanted], len(batch)


def _is_julian(said: Mapping[bytes, bytes], kind: str) -> bool:
    """Whether Spark says in a file that it has old days and moments by the calendar of Spark 2."""
    key, since = (b"INT96", b"3.1.0") if kind == "int96" else (b"DateTime", b"3.0.0")
    return b"org.apache.spark.legacy" + key in said or said.get(b"org.apache.spark.version", since) < since


def _is_early(column: pa.Array) -> bool:
    """Whether there are days or moments that are elsewhere in the Julian calendar, or by its clocks; a local time is not."""
    is_day, is_local = pa.types.is_date(column.type), not pa.types.is_timestamp(column.type) or column.type.tz is None
    if is_local and not is_day:
        return False
    first = dt.date(1582, 10, 15) if is_day else dt.datetime(1900, 1, 1, tzinfo=dt.UTC)
    return bool(pc.any(pc.less(column, pa.scalar(first, column.type))).as_py())


def _is_cut(micros: pa.Array, nanos: pa.Array) -> bool:
    if micros.type == nanos.type:
        return False
    whole = pc.multiply(micros.cast(pa.int64()), 1000)  # wraps around outside of 1677 to 2262, as the others do
    return bool(pc.any(pc.not_equal(nanos.cast(pa.int64()), whole)).as_py())


def _columns_in(what: str, schema: pa.Schema, wanted: pa.Schema, missing: str) -> list[str]:
    found = []
    for field in wanted:
        at = schema.get_field_index(field.name)
        if at >= 0:
            check_readable(schema.field(at).type, field.type, field.name, what)
            found.append(field.name)
        elif missing == "error" or field.name in schema.names:
            raise BadDataError(
                f"{what} has no column {field.name!r}, or has it more than once; it has "
                f"{names_shown(schema.names, field.name)}. Leave the field out, or give missing_columns='null' to have "
                "null there"
            )
    return found


def _read_schema(file: pq.ParquetFile) -> pa.Schema:
    """Return the schema of a file, in which Spark's INT96 are the moments that they stand for: Arrow calls them local times."""
    schema, moments = file.schema_arrow, _int96_columns(file)

    def type_of(one: pa.DataType) -> pa.DataType:
        return pa.timestamp("us", "UTC") if pa.types.is_timestamp(one) else one

    return pa.schema(
        [pa.field(one.name, replace_leaves(one.type, type_of)) if one.name in moments else one for one in schema]
    )


def _int96_columns(file: pq.ParquetFile) -> list[str]:
    columns = [file.schema.column(number) for number in range(len(file.schema))]
    paths = [one.path for one in columns if one.physical_type == "INT96"]
    names = file.schema_arrow.names if paths else []
    return [name for name in names if any(path == name or path.startswith(f"{name}.") for path in paths)]


def typed_as(fields: Fields, names: Sequence[str], type_of: Callable[[str], str | None], what: str) -> Fields:
    """Return fields with their types; one that is not declared is the column's, of the columns `names` that `what` has."""
    for name, type_ in fields.pairs:
        if type_ is None and name not in names:
            raise TopologyError(
                f"field {name!r} has no type, and {what} has no such column to take it from; it has "
                f"{names_shown(names, name)}"
            )
    return Fields.of(fields.names, [type_of(name) if type_ is None else type_ for name, type_ in fields.pairs])


_MAGIC = b"PAR1"
_TAIL = 8


@dataclass(frozen=True)
class Footer:
    """What the end of a Parquet file says."""

    crc: int  # of the footer's bytes, and of the size of the file
    bounds: list[int]  # where the row groups begin, the first at 0, and the size of the file
    metadata: pq.FileMetaData

    @staticmethod
    def of(path: str, size: int, read_at: Callable[[int, int], bytes]) -> Footer | None:
        """Read the footer of a file of a size, with a function of length and offset; None if it has none (yet)."""
        tail = read_at(_TAIL, size - _TAIL) if size > _TAIL else b""
        length = int.from_bytes(tail[:4], "little") + _TAIL
        if tail[4:] != _MAGIC or length > size:
            return None
        data = read_at(length, size - length)
        try:
            metadata = pq.read_metadata(pa.BufferReader(data))
        except (pa.ArrowException, OSError) as error:
            raise SpoutError(f"the Parquet file {path} has a footer that cannot be read: {error}") from error
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        columns = [group.column(0) for group in groups if group.num_columns]
        starts = [one.dictionary_page_offset or one.data_page_offset for one in columns]
        bounds = [0, *starts[1:], size]
        is_cut = len(starts) == len(groups) and all(low < high for low, high in pairwise(bounds))
        return Footer(zlib.crc32(data, size & 0xFFFFFFFF), bounds if is_cut else [0, size], metadata)

    def groups(self, start: int, end: int) -> list[int]:
        """Return the numbers of the row groups that begin in a range of bytes."""
        if len(self.bounds) != self.metadata.num_row_groups + 1:  # they are not in order, and cannot be distinguished
            return list(range(self.metadata.num_row_groups)) if start == 0 else []
        return [number for number, at in enumerate(self.bounds[:-1]) if start <= at < end]

    def weights(self, bytes_per_row: float) -> list[int]:
        """Return the unpacked bytes of the row groups, or a share for each of their rows if that is more."""
        each = [map(self.metadata.row_group, self.groups(low, high)) for low, high in pairwise(self.bounds)]
        sizes = [[(one.total_byte_size, one.num_rows) for one in groups] for groups in each]
        return [
            max(sum(size for size, _ in some), int(sum(rows for _, rows in some) * bytes_per_row)) for some in sizes
        ]


@dataclass(frozen=True)
class ParquetFiles(FileFormat):
    """Parquet files, for the coordinator; `bytes_per_row` makes a limit of rows one of bytes."""

    bytes_per_row: float

    def position_at(self, path: str, file: int, offset: int) -> Position:
        footer = _footer_of(path, file)
        return Position(offset, 0 if footer is None else footer.crc)

    def find(self, look: Look) -> FileCut:
        path, before, footer = look.path, look.before, _footer_of(look.path, look.file)
        if before.offset and (footer is None or footer.crc != before.crc or before.offset not in footer.bounds):
            raise ReplayMismatchError(
                f"the Parquet file {path} was read up to byte {before.offset} and is a different file now, of {look.size} "
                "bytes: it was replaced. Its rows up to there are counted already; give new content a name of its own"
            )
        if footer is None:
            return _hold(look)
        first = at = footer.bounds.index(before.offset)
        weight = 0
        for one in footer.weights(self.bytes_per_row)[first:]:
            if weight + one > look.room and (at > first or not look.alone):
                break
            at, weight = at + 1, weight + one
        end = footer.bounds[at]
        rest = Rest.MORE if end < footer.bounds[-1] else Rest.NOTHING
        return FileCut(FileRange(path, before.offset, end, footer.crc if end else 0), rest, weight)


def _hold(look: Look) -> FileCut:
    """Wait for the footer, which a writer writes last; `SpoutError` if it cannot come."""
    if look.tail.rule.follows and _MAGIC.startswith(os.pread(look.file, len(_MAGIC), 0)):
        look.tail.hold(0)
        return FileCut(None, Rest.HELD)
    raise SpoutError(
        f"{look.path} has no footer: it is not a Parquet file, or its writer has not finished. Remove it, or leave it out "
        "with pattern"
    )


def _footer_of(path: str, file: int) -> Footer | None:
    return Footer.of(path, os.fstat(file).st_size, partial(os.pread, file))
