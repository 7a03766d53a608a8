"""The Spark that workers run on, and other numbers of them for a topology that runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from trident.errors import ConfigError, TopologyError
from trident.spark.environment import is_spark_on, master_of
from trident.spark.session import spark_session
from trident.spark.shipping import ship_code
from trident.storm.execution.executor import Launch
from trident.storm.execution.task_layout import TaskLayout, lay_out
from trident.storm.storm_config import StormConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rebalanced(launch: Launch, workers: int | None, executors: Mapping[str, int]) -> Launch:
    """Return what the workers run after a rebalance; components that are not named keep their number of executors.

    Raises `TopologyError`: no such component, or a number of executors that its tasks do not allow.
    Raises `ConfigError`: fewer than one worker.
    """
    layout = launch.layout
    if workers is None:
        workers = layout.workers
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ConfigError(f"rebalance: workers={workers!r} must be a whole number of at least 1")
    _check(layout, executors)
    threads = {**Counter(place.component for place in layout.executors), **executors}
    ackers = launch.conf.ackers  # tasks stay, the ackers' too
    conf = replace(launch.conf, workers=workers, acker_executors=ackers)
    return replace(launch, conf=conf, layout=lay_out(launch.topology, workers, ackers, threads))


def _check(layout: TaskLayout, executors: Mapping[str, int]) -> None:
    for name, number in executors.items():
        if name not in layout.tasks:
            raise TopologyError(f"rebalance: no component {name!r} among {sorted(layout.tasks)}")
        tasks = len(layout.tasks[name])
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= tasks:
            raise TopologyError(
                f"rebalance: component {name!r} has {tasks} tasks, so it can have 1 to {tasks} executors, not {number!r}; "
                "declare more tasks with set_num_tasks"
            )


def open_spark(conf: StormConfig) -> SparkSession:
    """Return the active session, or start Spark, with as many slots as workers if it is a local one; ship our code."""
    master = conf.master
    if not is_spark_on() and master_of(master) == "local[*]":
        master = f"local[{conf.workers}]"  # a worker takes a slot, however many cores there are
    spark = spark_session(f"storm-{conf.name}", master, dict(conf.spark_conf))
    ship_code(spark.sparkContext)
    return spark
