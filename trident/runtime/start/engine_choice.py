"""Which runner a topology gets: `engine="spark"`, `"in_process"` or `"auto"`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from trident.config import Config
from trident.errors import ConfigError
from trident.extras import needs_package
from trident.planner import Plan
from trident.planner.loads import commit_loads
from trident.runtime.commit.committing import Committing
from trident.runtime.engine.auto import AutoRunner, FirstBatchRunner, LateRunner, cores
from trident.runtime.engine.pace import ALONE, MOST_PENDING
from trident.runtime.engine.runners import InProcessRunner, PacesBatches, Runner
from trident.runtime.engine.worker import Program
from trident.runtime.spouts.batch_spouts import SpoutHandle
from trident.spark.connect import connect_session, server_of, stop_connect, width_of
from trident.spark.shipping import ship_code, ship_code_to
from trident.spark.spark_resources import memory_settings, undone_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


def open_runner(
    program: Program,
    config: Config,
    memory_mb: float,
    in_executors: Committing | None = None,
    spouts: Mapping[str, SpoutHandle] | None = None,
    awaits_batch: bool = False,
) -> Runner:
    """Open the runner that the settings ask for.

    `memory_mb`: how many MiB the steps of one task ask for.
    `in_executors`: what Spark runs in place of `program`, if executors commit states.
    `spouts`: those that may need Spark to say whether they have a batch.
    `awaits_batch`: start Spark when there is a batch: there may be none.
    """
    if config.engine == "in_process":
        return InProcessRunner(program)
    spark = in_executors or Committing(program, frozenset())
    if config.engine == "auto":
        return _auto_runner(program, spark, config, memory_mb)
    if not awaits_batch or _is_spark_needed(config, spouts or {}):
        return _spark_runner(spark, config, memory_mb)
    alone = spark.commits or config.workers == "resident"
    most = config.max_spout_pending or (ALONE if alone else MOST_PENDING)
    return FirstBatchRunner(spark.program, lambda: _spark_runner(spark, config, memory_mb), most)


def _is_spark_needed(config: Config, spouts: Mapping[str, SpoutHandle]) -> bool:
    """Whether Spark runs already, or something asks it before there is a batch."""
    from pyspark import SparkContext

    running = SparkContext._active_spark_context is not None  # noqa: SLF001  PySpark has no public question
    asks = config.verify_replays or any(spout.coordinator.runs_spark_jobs() for spout in spouts.values())
    return bool(running or asks or server_of(config.master, config.spark_conf) is not None)


def check_workers(config: Config, spouts: Mapping[str, SpoutHandle]) -> None:
    """Refuse resident workers where they cannot be; the error says why, and what to use.

    Raises `ConfigError`: the engine starts none, or a spout needs the cores that they keep.
    """
    if config.workers != "resident":
        return
    why = ""
    if config.engine == "in_process":
        why = 'engine="in_process" has no workers: those are tasks of Spark. Use engine="spark" or "auto"'
    elif server_of(config.master, config.spark_conf) is not None:
        why = "Spark Connect has no tasks that the driver can send messages to. Use a classic session"
    for name, spout in spouts.items():
        if spout.coordinator.runs_spark_jobs():
            why = (
                f"stream {name!r} is read by Spark jobs of its own, which would wait for ever for the cores that the workers "
                "keep. Read the data by another spout"
            )
    if why:
        raise ConfigError(f'workers="resident": {why}, or leave workers out')


def most_pending(runner: Runner, config: Config) -> int:
    """Return how many batches may be in flight at once."""
    return runner.most_pending if isinstance(runner, PacesBatches) else config.max_spout_pending or ALONE


def log_idle_loads(plan: Plan, config: Config, in_executors: Collection[str]) -> None:
    """Log which loads have no effect, because their steps run in the driver's process."""
    unplaced = commit_loads(plan, in_executors) if config.engine != "in_process" else list(plan.memory_mb)
    if unplaced:
        logger.info(
            "topology %s: memory loads of %s are recorded only: they run in the process of the driver",
            plan.topology, ", ".join(unplaced),
        )  # fmt: skip


def _auto_runner(program: Program, spark: Committing, config: Config, memory_mb: float) -> AutoRunner:
    """Open both runners. If Spark runs already it is used at once, and says how many cores there are.

    So is a server of Spark Connect: the active session is that of this thread.
    """
    from pyspark import SparkContext

    large: Runner
    running = SparkContext._active_spark_context is not None  # noqa: SLF001  PySpark has no public question
    if running or server_of(config.master, config.spark_conf) is not None:
        large = _spark_runner(spark, config, memory_mb)
    else:
        parallelism = config.parallelism or cores()
        large = LateRunner(
            program,
            parallelism,
            lambda: _spark_runner(spark, replace(config, parallelism=parallelism), memory_mb),
            spark.commits,
        )
    return AutoRunner(InProcessRunner(program, large.parallelism), large, config.auto_bytes)


def _spark_runner(committing: Committing, config: Config, memory_mb: float) -> Runner:
    server = server_of(config.master, config.spark_conf)
    if server is not None:
        return _connect_runner(committing.program, config, memory_mb, server)
    from pyspark import SparkContext

    from trident.runtime.engine.shared_jobs import SharingRunner
    from trident.runtime.engine.spark_runner import SparkRunner
    from trident.spark.session import spark_session
    from trident.spark.worker_slots import check_free_slots

    # Not "no active session", which depends on the calling thread: a Spark of another thread is not ours to stop.
    owned = SparkContext._active_spark_context is None  # noqa: SLF001  PySpark has no public question
    program = committing.program
    name, memory = f"trident-{program.topology}", memory_settings(memory_mb, config.spark_conf)
    spark = spark_session(name, config.master, dict(config.spark_conf), memory)
    context = spark.sparkContext
    undone = undone_memory(memory_mb, context.master or "", context.getConf().get)
    if undone:
        logger.warning("topology %s: %s", program.topology, undone)
    ship_code(context)
    if config.workers == "resident":
        return _resident_runner(spark, committing, config, owned)
    check_free_slots(context, program.topology)
    runner = SparkRunner(spark, program, config.parallelism, owned, committing.commits)
    # A job that commits has the rows of one batch alone (R2).
    if committing.commits or config.max_spout_pending == 1:
        return runner
    return SharingRunner(runner, config.max_spout_pending or MOST_PENDING)


def _resident_runner(spark: SparkSession, committing: Committing, config: Config, owned: bool) -> Runner:
    with needs_package('workers="resident"', "storm", "pyzmq", "zmq"):
        from trident.runtime.engine.resident_runner import ResidentRunner
    return ResidentRunner(spark, committing.program, config.parallelism, owned, committing.commits)


def _connect_runner(program: Program, config: Config, memory_mb: float, server: str) -> Runner:
    from trident.runtime.engine.connect_runner import ConnectRunner

    if memory_mb:
        logger.info("topology %s: memory loads have no effect on Spark Connect", program.topology)
    session, is_new = connect_session(server, config.spark_conf)
    stop = partial(stop_connect, session, server) if is_new else None
    try:
        ship_code_to(session)
        return ConnectRunner(program, config.parallelism or width_of(session, cores()), session, stop)
    except BaseException:
        if stop is not None:
            stop()
        raise
