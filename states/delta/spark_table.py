"""A Delta state as a Spark DataFrame, and the settings with which Spark reads Delta tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from states.delta.beyond_memory.bucketed_base import is_bucket
from states.delta.layout import SENTINEL_COLUMN, SEQ_COLUMN, VALUE_COLUMNS
from states.delta.options import CHANGES
from trident.errors import EnvironmentProblem, StateError
from trident.fields import quote
from trident.redaction import redacted
from trident.state.txid import EVERYTHING_WON, Snapshot, Winners
from trident.state.values import UNKNOWN_ATTEMPT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Only the central repository, because Ivy's default chain looks into the local Maven folder first, and stops at a module
# whose description is there without the jar.
_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="{cache}"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true"/>
  </resolvers>
</ivysettings>
"""
# Messages of Spark without the library, and of the library in a session that was not set up for it.
_NO_DELTA = ("DATA_SOURCE_NOT_FOUND", "DELTA_CONFIGURE_SPARK_SESSION", "ClassNotFoundException", "NoClassDefFoundError")
# Spark brings these itself, some in other versions.
_PROVIDED = (
    "com.fasterxml.jackson.core", "com.fasterxml.jackson.datatype", "com.github.luben", "com.google.code.findbugs",
    "commons-logging", "commons-pool", "io.airlift", "javax.annotation", "org.apache.hadoop",
    "org.apache.logging.log4j", "org.apache.parquet", "org.locationtech.jts", "org.roaringbitmap", "org.slf4j",
    "org.xerial.snappy",
)  # fmt: skip
_PACKAGES = {
    "3.5": "io.delta:delta-spark_2.12:3.3.3",
    **{release: f"io.delta:delta-spark_{release}_2.13:4.4.0" for release in ("4.0", "4.1", "4.2")},
}


def delta_package() -> str:
    """Return the Maven coordinates of the Delta library for this Spark; `EnvironmentProblem`: none is known."""
    import pyspark

    release = ".".join(pyspark.__version__.split(".")[:2])
    if release not in _PACKAGES:
        raise EnvironmentProblem(
            f"no Delta library for PySpark {pyspark.__version__} is known, only for {', '.join(_PACKAGES)}. Give that of your "
            "platform by delta_session_conf(jars=[...]), or read the rows without Spark: open_state(...).get_tuples()"
        )
    return _PACKAGES[release]


def delta_session_conf(ivy_dir: str | os.PathLike[str] | None = None, jars: Sequence[str] = ()) -> dict[str, str]:
    """Return the Spark settings that make a session read and write Delta tables.

    Parameters
    ----------
    ivy_dir
        Directory in which Spark keeps the library and what it depends on, once fetched (made if missing; an Ivy
        settings file is written into it). Not used if `jars` are given.
    jars
        Paths of the `io.delta` jars (delta-spark and delta-storage), for machines that fetch nothing at run time.
    """
    conf = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # The default of 50 partitions makes the first access to a small table take seconds.
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    if jars:
        return conf | {"spark.jars": ",".join(jars)}
    conf["spark.jars.packages"] = delta_package()
    conf["spark.jars.excludes"] = ",".join(f"{group}:*" for group in _PROVIDED)
    if ivy_dir is None:
        return conf
    folder = Path(ivy_dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "ivysettings.xml"
    settings.write_text(_IVY_SETTINGS.format(cache=folder / "cache"), encoding="utf-8")
    return conf | {"spark.jars.ivy": str(folder), "spark.jars.ivySettings": str(settings)}


def delta_dataframe(
    spark: SparkSession,
    path: str | os.PathLike[str],
    version: int | None = None,
    snapshot: Snapshot | None = None,
    *,
    base_version: int | None = None,
) -> DataFrame:
    """Return a Delta state as a DataFrame of its key columns and `value`, the latest write of each key.

    The session needs `delta_session_conf`. The DataFrame is of the Delta version given or of the newest, which is a whole
    number of batches; of an opaque state that may include one batch that the log has not recorded yet, unless a `snapshot` of
    the log says which batches are committed (`version` must not be more than one batch beyond it). A key whose value is None
    has no row. Of a state beyond memory, give with a `version` also that of the table at the path behind it. Columns of types
    that are not declared are binary, in the codec of `trident.state.encoding.codec`.

    Raises
    ------
    StateError
        The table at `path` is not a Delta state.
    EnvironmentProblem
        The session cannot read Delta tables.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as sf

    path = os.fspath(path)
    try:
        table = load(spark, f"{path.rstrip('/')}/{CHANGES}", version)
    except AnalysisException:  # the folder is no state's
        table = load(spark, path)
    names = [name for name in table.columns if name not in (SEQ_COLUMN, SENTINEL_COLUMN)]
    for columns in VALUE_COLUMNS.values():
        value, keys = columns[-1], names[: -len(columns)]
        if keys and tuple(names[len(keys) :]) == columns and len(names) == len(table.columns) - 2:
            shown = sf.col(value) if snapshot is None or value != "curr" else value_at(snapshot)
            # Under a name that no key has.
            latest = sf.max_by(sf.struct(shown.alias("value")), sf.col(SEQ_COLUMN)).alias(SEQ_COLUMN)
            rows = table.where(sf.col(SENTINEL_COLUMN).isNull()).groupBy(*map(quote, keys)).agg(latest)
            rows = rows.select(*map(quote, keys), f"{SEQ_COLUMN}.value")
            # After the changes, because a change leaves their table once a base holds it.
            return _over_base(spark, path, rows, keys, base_version).where("value IS NOT NULL")
    raise StateError(f"read Delta table {path} as a state: its columns {table.columns} are not a state's")


def _over_base(spark: SparkSession, path: str, rows: DataFrame, keys: Sequence[str], version: int | None) -> DataFrame:
    """Return rows, and rows with other keys of the base behind them; the rows alone if there is no base."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as sf

    try:
        base = load(spark, path, version)
    except AnalysisException:  # nothing was published yet
        return rows
    if SENTINEL_COLUMN in base.columns or not any(map(is_bucket, base.inputFiles())):
        return rows
    base = base.toDF(*keys, "value").alias("base")
    same = [sf.col(f"base.{key}").eqNullSafe(sf.col(f"rows.{key}")) for key in map(quote, keys)]
    # Either may have fields that the other has not: the base gets the columns of a declaration with its next merge.
    return rows.unionByName(base.join(rows.alias("rows"), same, "left_anti"), allowMissingColumns=True)


def load(spark: SparkSession, path: str, version: int | None = None) -> DataFrame:
    """Return a Delta table as it is stored, at a version or the newest."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    reader = spark.read.format("delta")
    try:
        return (reader if version is None else reader.option("versionAsOf", version)).load(path)
    except (PySparkException, Py4JJavaError) as error:
        if not any(sign in str(error) for sign in _NO_DELTA):
            raise
        raise EnvironmentProblem(
            f"read Delta table {redacted(path)} with Spark: this session was started without the library of Delta or its "
            "settings. Stop it, and start one with what states.delta.delta_session_conf() returns"
        ) from error


# The rule of an opaque value as a column of Spark; a test compares it with `trident.state.values`, which has the rule.


def value_at(snapshot: Snapshot) -> Column:
    """Return the value of an opaque row as of a committed batch: `trident.state.values.OpaqueValue.at`."""
    from pyspark.sql import functions as sf

    won = _won(sf.col("txid"), sf.col("attempt"), snapshot.winners) | (sf.col("attempt") == UNKNOWN_ATTEMPT)
    return sf.when((sf.col("txid") <= snapshot.txid) & won, sf.col("curr")).otherwise(sf.col("prev"))


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
