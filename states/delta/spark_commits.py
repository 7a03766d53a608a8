"""The commit of a batch that is too large for one process: Spark joins the partial results with the table.

The value rule of the kind is a column expression (`spark_rule.py`). Spark reads the version that the claim was compared in and
writes the new rows to a staging folder. From there they stream, batch by batch, into one Delta commit as the very next version.
So the fence is that of every other commit, and neither the table nor the partial results are ever in one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from states.delta.change_table import ChangeTable, VersionMoved
from states.delta.commit_notes import CommitNote
from states.delta.fence import moved_by_compactions, newest_sentinel, overtaken
from states.delta.layout import SENTINEL_COLUMN, SEQ_COLUMN, Layout
from states.delta.options import DeltaOptions
from states.delta.spark_rule import PARTIAL, STORED, by_rule, combiner
from states.delta.spark_table import load
from states.delta.table_path import local_path
from trident.errors import ConfigError, StaleTransactionError
from trident.redaction import redacted
from trident.state.interfaces import StateConf, StateType
from trident.state.map_state import state_type
from trident.state.sentinel import check_sentinel
from trident.state.txid import Sentinel, Txid
from trident.storekit import check_move

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["merge_dataframe"]

_TRIES = 5
_TIMES = "_times"


def merge_dataframe(
    partials: DataFrame,
    path: str | os.PathLike[str],
    txid: int,
    combine: str | Callable[[Column, Column], Column],
    conf: StateConf,
    kind: StateType | str = StateType.OPAQUE,
    partition: int = 0,
    staging: str | None = None,
    **options: Any,
) -> int:
    """Commit a batch whose partial results are a DataFrame; return the number of keys written.

    The result is the same as of `begin_commit(txid)`, one `multi_update` with a `CombinerValueUpdater` for each row, and
    `commit(txid)`. The session needs `delta_session_conf`.

    Parameters
    ----------
    partials
        One row per key: the key columns by their names in `conf`, and `value`.
    path, conf, kind, partition, options
        Those of the state; `conf` declares the types of keys and value.
    txid
        The batch; a `Txid` carries its attempt, the winners and the sentinel that must be found.
    combine
        The new value from the stored one and the partial one, as a column expression; or "count", "sum", "min", "max".
    staging
        A folder that Spark's workers can write and this process can read; None: inside the table's folder. It is emptied
        at the end.

    Raises
    ------
    StaleTransactionError
        A key was written by a later batch. Nothing was written.
    FencedError, BackendError
        Another writer has committed meanwhile. Nothing was written.
    ValueError
        A key comes more than once.
    """
    if conf.value_type is None or not conf.key_fields:
        raise ConfigError(f"merge a DataFrame into {os.fspath(path)}: conf must declare key_fields and value_type")
    layout, commit = Layout(state_type(kind), conf), Txid.of(txid)
    what = f"state {conf.state!r} partition {partition} in {redacted(os.fspath(path))}"
    table = ChangeTable(os.fspath(path), layout.schemas, layout.description, DeltaOptions(**options))
    table.create()
    found = None
    own = None if commit.sentinel is None else commit.sentinel._replace(place=conf.prefix)
    if own is not None:
        found = newest_sentinel(table)
        check_sentinel(conf.prefix, partition, found, commit, conf.prefix)
        check_move(what, own, found, found)
    updated = _updated(partials, table.path, table.version, layout, conf, commit, combiner(combine))
    with _staged(updated, staging or f"{table.path.rstrip('/')}/_trident_staging") as rows:
        _check(rows, layout, conf, commit)
        written = int(rows.count_rows(filter=pc.field("_write")))
        if not _commit_rows(rows, table, layout, f"trident/{conf.prefix}/{partition}", own, commit):
            table.refresh()
            raise overtaken(what, own, newest_sentinel(table), found, table.version)
        return written


def _commit_rows(
    rows: ds.Dataset, table: ChangeTable, layout: Layout, app: str, own: Sentinel | None, txid: Txid
) -> bool:
    """Commit as the version after the one that was read; False if another commit than a compaction came first."""
    based_on = table.version
    for _ in range(_TRIES):
        seq = max(table.version, *(file.last for file in table.files()), 0) + 1
        named = (f"{app}/rows", seq) if own is None else (app, own.version)
        try:
            table.commit(
                _with_sentinel(rows, layout, seq, own), seq, "append", named, CommitNote.of_commit(txid).metadata()
            )
        except VersionMoved:
            if not moved_by_compactions(table, based_on):
                return False
            based_on = table.version
        else:
            return True
    return False


def _with_sentinel(rows: ds.Dataset, layout: Layout, seq: int, sentinel: Sentinel | None) -> pa.RecordBatchReader:
    """Stream the staged rows as rows of the table; the sentinel comes last."""

    def batches() -> Iterator[pa.RecordBatch]:
        names = [*layout.key_columns, *layout.value_columns]
        for batch in rows.to_batches(columns=names, filter=pc.field("_write")):
            count = batch.num_rows
            data = pa.Table.from_batches([batch]).cast(pa.schema([layout.schema.field(name) for name in names]))
            data = data.append_column(SEQ_COLUMN, pa.array([seq], pa.int64()).take(pa.repeat(0, count)))
            data = data.append_column(SENTINEL_COLUMN, pa.nulls(count, layout.schema.field(SENTINEL_COLUMN).type))
            yield from data.cast(layout.schema).to_batches()
        yield from layout.table([], [], seq, sentinel).to_batches()

    return pa.RecordBatchReader.from_batches(layout.schema, batches())


def _updated(
    partials: DataFrame,
    path: str,
    version: int,
    layout: Layout,
    conf: StateConf,
    txid: Txid,
    combine: Callable[[Column, Column], Column],
) -> DataFrame:
    """Return the new rows: keys, value columns, and what the checks need."""
    from pyspark.sql import functions as sf

    table = load(partials.sparkSession, path, version)
    keys = [f"`{name}`" for name in layout.key_columns]
    newest = sf.max_by(sf.struct(*(f"`{name}`" for name in layout.value_columns)), sf.col(SEQ_COLUMN))
    stored = table.where(sf.col(SENTINEL_COLUMN).isNull()).groupBy(*keys).agg(newest.alias(STORED)).alias("stored")
    types = [ddl for _, ddl in conf.key_fields]
    named = [
        sf.col(f"`{name}`").cast(ddl).alias(column)
        for (name, _), ddl, column in zip(conf.key_fields, types, layout.key_columns, strict=True)
    ]
    value = sf.col("value").cast(str(conf.value_type)).alias(PARTIAL)
    wanted = (
        partials.select(*named, value)
        .groupBy(*keys)
        .agg(sf.first(PARTIAL).alias(PARTIAL), sf.count(sf.lit(1)).alias(_TIMES))
    )
    same = [sf.col(f"wanted.{key}").eqNullSafe(sf.col(f"stored.{key}")) for key in keys]
    joined = wanted.alias("wanted").join(stored, same, "left")
    columns = by_rule(layout.kind, str(conf.value_type), txid, combine)
    return joined.select(*(sf.col(f"wanted.{key}") for key in keys), *columns, _TIMES)


@contextmanager
def _staged(rows: DataFrame, folder: str) -> Iterator[ds.Dataset]:
    place = f"{folder.rstrip('/')}/{uuid4().hex}"
    local = local_path(place)
    try:
        rows.write.parquet(place)
        system, inside = (pafs.LocalFileSystem(), str(local)) if local else pafs.FileSystem.from_uri(place)
        yield ds.dataset(inside, filesystem=system, format="parquet")
    finally:
        system, inside = (pafs.LocalFileSystem(), str(local)) if local else pafs.FileSystem.from_uri(place)
        if system.get_file_info(inside).type != pafs.FileType.NotFound:
            system.delete_dir(inside)


def _check(rows: ds.Dataset, layout: Layout, conf: StateConf, txid: Txid) -> None:
    keys = list(layout.key_columns)
    twice = rows.head(1, columns=keys, filter=pc.field(_TIMES) > 1).to_pylist()
    if twice:
        key = tuple(twice[0].values())
        raise ValueError(f"key {key!r} occurs more than once in the partial results for state {conf.state!r}")
    later = rows.head(1, columns=[*keys, "_stored_txid"], filter=pc.field("_stored_txid") > int(txid)).to_pylist()
    if later:
        *key_parts, stored = later[0].values()
        raise StaleTransactionError(conf.state, tuple(key_parts), int(txid), stored)
