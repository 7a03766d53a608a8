"""Which runner a topology gets: `engine="spark"`, `"in_process"` or `"auto"`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from trident.config import Config
from trident.planner import Plan
from trident.planner.loads import StageLoad, commit_loads
from trident.runtime.engine.auto import AutoRunner, LateRunner, cores
from trident.runtime.engine.runners import InProcessRunner, Runner, SparkRunner
from trident.runtime.engine.spark_resources import memory_settings
from trident.runtime.engine.worker import Program

__all__ = ["open_runner", "tell_loads"]

logger = logging.getLogger(__name__)


def open_runner(program: Program, config: Config, loads: Sequence[StageLoad]) -> Runner:
    """Open the runner that the settings ask for; `loads` are the loads of the stages."""
    if config.engine == "spark":
        return _spark_runner(program, config, loads)
    if config.engine == "in_process":
        return InProcessRunner(program)
    return _auto_runner(program, config, loads)


def tell_loads(plan: Plan, config: Config) -> None:
    """Log which loads have no effect, because their steps run in the driver's process."""
    unplaced = commit_loads(plan) if config.engine != "in_process" else list(plan.resources)
    if unplaced:
        logger.info(
            "topology %s: cpu and memory loads of %s are recorded only: they run in the process of the driver",
            plan.topology, ", ".join(unplaced),
        )  # fmt: skip


def _auto_runner(program: Program, config: Config, loads: Sequence[StageLoad]) -> AutoRunner:
    """Open both runners. If Spark runs already it is used at once, and says how many cores there are."""
    from pyspark import SparkContext

    large: Runner
    if SparkContext._active_spark_context is not None:  # noqa: SLF001  PySpark has no public question
        large = _spark_runner(program, config, loads)
    else:
        parallelism = config.parallelism or cores()
        large = LateRunner(
            program, parallelism, lambda: _spark_runner(program, replace(config, parallelism=parallelism), loads)
        )
    return AutoRunner(InProcessRunner(program, large.parallelism), large, config.auto_bytes)


def _spark_runner(program: Program, config: Config, loads: Sequence[StageLoad]) -> SparkRunner:
    from pyspark import SparkContext

    from trident.runtime.engine.session import spark_session

    # Not "no active session", which depends on the calling thread: a Spark of another thread is not ours to stop.
    owned = SparkContext._active_spark_context is None  # noqa: SLF001  PySpark has no public question
    name, memory = f"trident-{program.topology}", memory_settings(loads, config.spark_conf)
    spark = spark_session(name, config.master, dict(config.spark_conf), memory)
    return SparkRunner(spark, program, config.parallelism, owned, loads)
