"""The commit of a batch that is too large for one process: Spark joins the partial results with the table.

The value rule of the kind is a column expression here; `trident.state.values` is the same rule for Python objects. Spark
reads the version that the claim was compared in and writes the new rows to a staging folder. From there they stream, batch by
batch, into one Delta commit as the very next version. So the fence is that of every other commit, and neither the table nor
the partial results are ever in one process.
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
from states.delta.spark_table import load
from states.delta.table_path import local_path
from trident.errors import ConfigError, StaleTransactionError
from trident.redaction import redacted
from trident.state.interfaces import StateConf, StateType
from trident.state.map_state import state_type
from trident.state.sentinel import check_sentinel
from trident.state.txid import Sentinel, Txid
from trident.state.winners import EVERYTHING_WON, Winners
from trident.storekit import check_move

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["COMBINERS", "merge_dataframe"]

COMBINERS = ("count", "max", "min", "sum")
"""Names that `merge_dataframe` accepts in place of an expression."""

_TRIES = 5
_STORED, _PARTIAL, _TIMES = "_stored", "_partial", "_times"


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
    updated = _updated(partials, table.path, table.version, layout, conf, commit, _combiner(combine))
    with _staged(updated, staging or f"{table.path.rstrip('/')}/_trident_staging") as rows:
        _check(rows, layout, conf, commit)
        written = int(rows.count_rows(filter=pc.field("_write")))
        note = CommitNote.of_commit(commit).metadata()
        based_on = table.version
        for _ in range(_TRIES):
            seq = max(table.version, *(file.last for file in table.files()), 0) + 1
            try:
                table.commit(
                    _with_sentinel(rows, layout, seq, own),
                    seq,
                    "append",
                    _app(conf, partition, commit, seq),
                    note,
                )
                return written
            except VersionMoved:
                if not moved_by_compactions(table, based_on):
                    break
                based_on = table.version
        table.refresh()
        raise overtaken(what, own, newest_sentinel(table), found, table.version)


def _app(conf: StateConf, partition: int, txid: Txid, seq: int) -> tuple[str, int]:
    app = f"trident/{conf.prefix}/{partition}"
    return (f"{app}/rows", seq) if txid.sentinel is None else (app, txid.sentinel.version)


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
    stored = table.where(sf.col(SENTINEL_COLUMN).isNull()).groupBy(*keys).agg(newest.alias(_STORED)).alias("stored")
    types = [ddl for _, ddl in conf.key_fields]
    named = [
        sf.col(f"`{name}`").cast(ddl).alias(column)
        for (name, _), ddl, column in zip(conf.key_fields, types, layout.key_columns, strict=True)
    ]
    value = sf.col("value").cast(str(conf.value_type)).alias(_PARTIAL)
    wanted = (
        partials.select(*named, value)
        .groupBy(*keys)
        .agg(sf.first(_PARTIAL).alias(_PARTIAL), sf.count(sf.lit(1)).alias(_TIMES))
    )
    same = [sf.col(f"wanted.{key}").eqNullSafe(sf.col(f"stored.{key}")) for key in keys]
    joined = wanted.alias("wanted").join(stored, same, "left")
    columns = _by_rule(layout.kind, conf, txid, combine)
    return joined.select(*(sf.col(f"wanted.{key}") for key in keys), *columns, _TIMES)


def _by_rule(kind: StateType, conf: StateConf, txid: Txid, combine: Callable[[Column, Column], Column]) -> list[Column]:
    from pyspark.sql import functions as sf

    number, value_type = int(txid), str(conf.value_type)
    none, partial = sf.lit(None).cast(value_type), sf.col(_PARTIAL)

    def combined(base: Column) -> Column:
        return sf.when(base.isNull(), partial).otherwise(combine(base, partial)).cast(value_type)

    if kind is StateType.NON_TRANSACTIONAL:
        new = combined(sf.col(f"{_STORED}.value"))
        return [new.alias("value"), sf.lit(None).cast("bigint").alias("_stored_txid"), sf.lit(True).alias("_write")]
    written_by = sf.col(f"{_STORED}.txid")
    marks = [sf.lit(number).cast("bigint").alias("txid")]
    if kind is StateType.TRANSACTIONAL:
        new, write = combined(sf.col(f"{_STORED}.value")).alias("value"), ~written_by.eqNullSafe(sf.lit(number))
        return [*marks, new, written_by.alias("_stored_txid"), write.alias("_write")]
    stands = (written_by != number) & _won(written_by, sf.col(f"{_STORED}.attempt"), txid.winners)
    base = sf.when(written_by.isNull(), none).when(stands, sf.col(f"{_STORED}.curr")).otherwise(
        sf.col(f"{_STORED}.prev")
    )  # fmt: skip
    marks += [sf.lit(txid.attempt).cast("bigint").alias("attempt"), base.alias("prev"), combined(base).alias("curr")]
    return [*marks, written_by.alias("_stored_txid"), sf.lit(True).alias("_write")]


def _won(txid: Column, attempt: Column, winners: Winners) -> Column:
    from pyspark.sql import functions as sf

    if winners is EVERYTHING_WON:
        return sf.lit(True)
    adopted = txid <= winners.adopted
    if not winners.ranges:
        return adopted
    ranges = sf.array(
        *(
            sf.struct(sf.lit(t).cast("bigint").alias("t"), sf.lit(a).cast("bigint").alias("a"))
            for t, a in winners.ranges
        )
    )
    # The last range that starts at or before txid: structs compare by their first field first.
    winner = sf.array_max(sf.filter(ranges, lambda one: one["t"] <= txid))["a"]
    return sf.coalesce(winner == attempt, sf.lit(False)) | adopted


def _combiner(combine: str | Callable[[Column, Column], Column]) -> Callable[[Column, Column], Column]:
    from pyspark.sql import functions as sf

    if callable(combine):
        return combine
    known: dict[str, Callable[[Column, Column], Column]] = {
        "count": lambda stored, partial: stored + partial,
        "sum": lambda stored, partial: stored + partial,
        "min": lambda stored, partial: sf.least(stored, partial),
        "max": lambda stored, partial: sf.greatest(stored, partial),
    }
    if combine not in known:
        raise ConfigError(f"combine={combine!r} is unknown; use one of {', '.join(COMBINERS)}, or an expression")
    return known[combine]


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
