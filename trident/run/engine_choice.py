"""Which runner a topology gets: `engine="spark"`, `"in_process"` or `"auto"`; and whether its start goes on waiting."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from functools import partial

from trident.config import Config
from trident.engine.runners import AutoRunner, InProcessRunner, Runner, cores
from trident.engine.worker import Program
from trident.errors import ConfigError
from trident.extras import needs_package
from trident.plan import Plan
from trident.plan.plan import commit_loads, stage_memory
from trident.roles import close_on_error
from trident.run.placements import on_cluster
from trident.spark.connect import connect_session, server_of, stop_connect, width_of
from trident.spark.environment import is_spark_on
from trident.spark.shipping import ship_code, ship_code_to
from trident.spark.spark_resources import memory_settings, undone_memory
from trident.spout.interfaces import BatchCoordinator

logger = logging.getLogger(__name__)

RunnerOf = Callable[[Program, Config, Plan, Program, Mapping[str, BatchCoordinator]], Runner]
"""Opens what processes the batches, as `open_runner` does."""

_SPARE = 2  # slots for other jobs of the session, such as a DataFrame of a state, beside workers that keep theirs
_gives_up: ContextVar[Callable[[], bool]] = ContextVar("gives_up", default=lambda: False)
_awaits_batch: ContextVar[bool] = ContextVar("awaits_batch", default=False)


@contextmanager
def giving_up_if(is_asked: Callable[[], bool], awaits_batch: bool = False) -> Iterator[None]:
    """Have a start in the block give up once this says so, as after Ctrl-C; if it awaits a batch, Spark starts with one."""
    before, awaited = _gives_up.set(is_asked), _awaits_batch.set(awaits_batch)
    try:
        yield
    finally:
        _gives_up.reset(before)
        _awaits_batch.reset(awaited)


def is_given_up() -> bool:
    return _gives_up.get()()


def open_runner(
    program: Program, config: Config, plan: Plan, spark: Program, spouts: Mapping[str, BatchCoordinator]
) -> Runner:
    """Open the runner that the settings ask for; where executors commit, Spark runs `spark` in place of `program`."""
    if config.engine == "in_process":
        return InProcessRunner(program)
    memory_mb = max(stage_memory(plan, spark.committed))  # what the steps of one task ask for
    is_there = is_spark_on() or server_of(config.master, config.spark_conf) is not None
    if config.engine == "spark":
        asks_spark = any(spout.runs_spark_jobs for spout in spouts.values())
        if is_there or not _awaits_batch.get() or config.verify_replays or asks_spark:
            return _spark_runner(spark, config, memory_mb)
        return AutoRunner(spark, 1, lambda: _spark_runner(spark, config, memory_mb), spark.commits)
    # What is there is used at once, and says how many cores there are; a session of Spark Connect is that of this thread.
    opened = _spark_runner(spark, config, memory_mb) if is_there else None
    parallelism = config.parallelism or cores() if opened is None else opened.parallelism
    open_ = lambda: _spark_runner(spark, replace(config, parallelism=parallelism), memory_mb)  # noqa: E731
    return AutoRunner(program, parallelism, open_, spark.commits, config.auto_bytes, opened)


def with_workers(config: Config, spouts: Mapping[str, BatchCoordinator]) -> Config:
    """Return the settings, with `workers="jobs"` where workers cannot be resident, or only if that is asked for."""
    if config.workers == "jobs":
        return config
    why = ""
    if config.engine == "in_process":
        why = 'engine="in_process" has no workers: those are tasks of Spark. Use engine="spark" or "auto"'
    elif server_of(config.master, config.spark_conf) is not None:
        why = "Spark Connect has no tasks that the driver can send messages to. Use a classic session"
    for name, spout in spouts.items():
        if spout.runs_spark_jobs:
            why = (
                f"stream {name!r} is read by Spark jobs of its own, which would wait for ever for the cores that the workers "
                "keep. Read the data by another spout"
            )
    if why and config.workers == "resident":
        raise ConfigError(f'workers="resident": {why}, or leave workers out')
    # Spark on this machine that this start may start: no other program counts on its slots.
    if config.workers == "resident" or not (why or is_spark_on() or on_cluster(config)):
        return config
    chosen = copy(config)
    vars(chosen)["workers"] = "jobs"  # `replace` would make each setting one that was given
    return chosen


def log_idle_loads(plan: Plan, config: Config, in_executors: Collection[str]) -> None:
    """Log which loads have no effect, because their steps run in the driver's process."""
    unplaced = commit_loads(plan, in_executors) if config.engine != "in_process" else list(plan.memory_mb)
    if unplaced:
        logger.info(
            "topology %s: memory loads of %s are recorded only: they run in the process of the driver",
            plan.topology, ", ".join(unplaced),
        )  # fmt: skip


def _spark_runner(program: Program, config: Config, memory_mb: float) -> Runner:
    server = server_of(config.master, config.spark_conf)
    if server is not None:
        return _connect_runner(program, config, memory_mb, server)
    from trident.engine.spark_runner import SparkRunner
    from trident.spark.session import spark_session
    from trident.spark.spark_resources import check_free_slots

    owned = not is_spark_on()
    resident = config.workers == "resident" or (config.workers == "auto" and owned)
    spare = _SPARE if owned and resident and not on_cluster(config) else 0
    name, memory = f"trident-{program.topology}", memory_settings(memory_mb, config.spark_conf)
    spark = spark_session(name, config.master, dict(config.spark_conf), memory, spare)
    context = spark.sparkContext
    undone = undone_memory(memory_mb, context.master or "", context.getConf().get)
    if undone:
        logger.warning("topology %s: %s", program.topology, undone)
    ship_code(context)
    if resident:
        with needs_package('workers="resident"', "spark", "pyzmq", "zmq"):
            from trident.engine.resident_runner import ResidentRunner
        return ResidentRunner(spark, program, config.parallelism, owned, spare)
    check_free_slots(context, program.topology)
    return SparkRunner(spark, program, config.parallelism, owned)


def _connect_runner(program: Program, config: Config, memory_mb: float, server: str) -> Runner:
    from trident.engine.dataframe_runner import DataFrameRunner

    if memory_mb:
        logger.info("topology %s: memory loads have no effect on Spark Connect", program.topology)
    session, is_new = connect_session(server, config.spark_conf)
    stop = partial(stop_connect, session, server) if is_new else None
    with close_on_error(stop or (lambda: None)):
        ship_code_to(session)
        return DataFrameRunner(program, config.parallelism or width_of(session, cores()), session, stop)
