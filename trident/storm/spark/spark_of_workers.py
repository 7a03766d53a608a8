"""The Spark that a topology's workers run on, and the driver's address in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trident.spark.environment import master_of
from trident.spark.session import spark_session
from trident.spark.shipping import ship_code
from trident.storm.storm_config import StormConfig

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["addresses_of", "open_spark", "spark_is_on"]

_LOOPBACK = "127.0.0.1"


def spark_is_on() -> bool:
    """Whether this process has a Spark. Not "an active session": a Spark of another thread is not ours to stop."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None  # noqa: SLF001  PySpark has no public question


def open_spark(conf: StormConfig) -> SparkSession:
    """Return the active session, or start Spark, with as many slots as workers if it is a local one; ship our code."""
    master = conf.master
    if not spark_is_on() and master_of(master) == "local[*]":
        master = f"local[{conf.workers}]"  # a worker takes a slot, however many cores there are
    spark = spark_session(f"storm-{conf.name}", master, dict(conf.spark_conf))
    ship_code(spark.sparkContext)
    return spark


def addresses_of(context: SparkContext) -> tuple[str, str]:
    """Return the driver's address for its workers, and the one to listen at."""
    master, conf = context.master or "", context.getConf()
    if master.startswith("local") and not master.startswith("local-cluster"):
        return _LOOPBACK, _LOOPBACK
    host = conf.get("spark.driver.host") or _LOOPBACK
    return host, conf.get("spark.driver.bindAddress") or "*"
