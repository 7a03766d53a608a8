"""ParquetFileSpout: the rows of Parquet files, each exactly once, from files that are there and that come.

Definitions are as in `TextFileSpout`, with ranges that begin and end at row groups and the checksum of the footer (see
`parquet_rows.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Unpack

import pyarrow as pa
import pyarrow.parquet as pq

from spouts.files.column_types import read_schema, typed_as
from spouts.files.file_coordinator import FileCoordinator
from spouts.files.file_listing import Paths
from spouts.files.file_settings import FileSettings, FileSpout
from spouts.files.parquet_rows import ParquetEmitter, ParquetFiles
from spouts.files.ranges import open_error
from trident.alignment import fields_of_schema
from trident.arrow import schema_of
from trident.errors import SpoutError
from trident.fields import Fields, FieldsLike


class ParquetFileSpout(FileSpout):
    """Emits each row of Parquet files once. Files do not change; new ones may come. Transactional.

    Parameters
    ----------
    paths
        A directory, a glob, a file, or a list of them. All workers must see the files under the same absolute paths.
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
    files
        The settings of all spouts of files: `max_batch_bytes`, `pattern` (default `*.parquet`), `recursive`, `follow`,
        `tail`, `allow_empty`; see `FileSettings`. A file is read as soon as it has its footer.
    """

    def __init__(
        self,
        paths: Paths,
        fields: FieldsLike | None = None,
        *,
        max_batch_rows: int | None = None,
        missing_columns: str = "error",
        with_file: bool = False,
        **files: Unpack[FileSettings],
    ) -> None:
        if max_batch_rows is not None and max_batch_rows < 1:
            raise ValueError(f"max_batch_rows is {max_batch_rows}; it must be at least 1")
        if missing_columns not in ("error", "null"):
            raise ValueError(f'missing_columns is {missing_columns!r}; it must be "error" or "null"')
        files.setdefault("max_batch_bytes", 64 << 20)
        super().__init__("Parquet", paths, "*.parquet", **files)
        self._refuse_tables()
        declared = self._typed(None if fields is None else Fields(fields))
        bytes_per_row = self._max_batch_bytes / max_batch_rows if max_batch_rows else 0.0
        self._read_as(ParquetFiles(bytes_per_row), ParquetEmitter(declared, with_file, missing_columns))

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

    def _typed(self, fields: Fields | None) -> Fields:
        if fields is not None and None not in fields.types:
            schema_of(fields)
            return fields
        first = next(iter(self._source.files()), None)
        if first is None:
            raise SpoutError(
                f"there is no Parquet file yet in {self._source} to take the types of the fields from; declare "
                'them, as in fields="id: bigint, name: string"'
            )
        schema = _schema_in(first)
        if fields is None:
            return fields_of_schema(schema)

        def type_of(name: str) -> str | None:
            return fields_of_schema(pa.schema([schema.field(name)])).types[0]

        return typed_as(fields, schema.names, type_of, first)


def _schema_in(path: str) -> pa.Schema:
    try:
        with pq.ParquetFile(path) as file:
            return read_schema(file)
    except pa.ArrowException as error:
        raise SpoutError(f"the types of the fields cannot be taken from {path}: {error}; declare them") from error
    except OSError as error:
        raise open_error(path, error, "cannot take the types of the fields") from error
