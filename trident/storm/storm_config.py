"""The settings of a topology of spouts and bolts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trident.errors import ConfigError
from trident.setting_types import MOST_MS, Settings, number, read_settings, seconds, whole

MOST_THREADS = 10_000
_STORMS_NAMES = {
    "topology.workers": "workers",
    "topology.acker.executors": "acker_executors",
    "topology.message.timeout.secs": "message_timeout_s",
    "topology.max.spout.pending": "max_spout_pending",
    "topology.tick.tuple.freq.secs": "tick_tuple_freq_s",
    "topology.executor.receive.buffer.size": "receive_buffer_size",
    "topology.sleep.spout.wait.strategy.time.ms": "spout_wait_ms",
    "topology.debug": "debug",
    "topology.name": "name",
}
_FOR_ONE_COMPONENT = ("debug", "max_spout_pending", "tick_tuple_freq_s")


@dataclass(frozen=True, repr=False)
class StormConfig(Settings):
    """Settings of `LocalCluster.submit_topology` and `TopologyBuilder.start`; Storm's names are read as well.

    Attributes
    ----------
    name
        The name of the topology, in logs, metrics and errors.
    workers
        How many worker processes run it; on Spark each takes one slot (`topology.workers`).
    acker_executors
        How many ackers track tuple trees; None is one for each worker. With 0 nothing is tracked: a spout's `ack` is called
        right after its emit (`topology.acker.executors`).
    message_timeout_s
        A tuple tree that is not processed within this time is failed, after at most twice the time
        (`topology.message.timeout.secs`).
    max_spout_pending
        How many tracked tuples of one spout task may be unanswered; None is no limit (`topology.max.spout.pending`).
    tick_tuple_freq_s
        Every bolt gets a tuple with `is_tick` in this interval; `add_configuration` sets it for one bolt
        (`topology.tick.tuple.freq.secs`).
    receive_buffer_size
        How many deliveries, of up to 128 tuples each, may wait in front of an executor before its senders have to wait.
    spout_wait_ms
        How long a spout that emitted nothing waits before `next_tuple` is called again.
    debug
        Log each emitted tuple (`topology.debug`).
    max_worker_deaths, worker_deaths_window_s
        The topology ends, with the cause, when its workers have died more often than this within the time.
    worker_timeout_s
        A worker that is not heard of for this long counts as dead, and one that does not hear of its driver for this long
        ends.
    start_timeout_s
        How long all workers together may take to start.
    drain_timeout_s
        How long `stop` waits for tuples that are pending after the spouts were deactivated.
    master
        Spark master URL; default `local[workers]`, or the active session's.
    spark_conf
        Further Spark settings, by key.
    log_interval_s
        How often a line with the statistics of the last ten minutes is logged; None for never.
    metrics_port
        Serve the statistics in OpenMetrics over HTTP at this port; 0 takes a free one, None serves none. Needs
        `trident-spark[metrics]`.
    metrics_host
        The address to serve metrics at.
    user
        Settings of your own, which spouts and bolts find in their `conf`.
    """

    name: str = "topology"
    workers: int = whole(1, 1, MOST_THREADS)
    acker_executors: int | None = whole(None, 0, MOST_THREADS)
    message_timeout_s: float = seconds(30.0)
    max_spout_pending: int | None = whole(None, 1)
    tick_tuple_freq_s: float | None = seconds(None)
    receive_buffer_size: int = whole(256, 1)
    spout_wait_ms: float = number(1.0, "milliseconds", 0, MOST_MS)
    debug: bool = False
    max_worker_deaths: int = whole(10, 0)
    worker_deaths_window_s: float = seconds(300.0)
    worker_timeout_s: float = seconds(30.0)
    start_timeout_s: float = seconds(120.0)
    drain_timeout_s: float = seconds(30.0, least=0)
    master: str | None = None
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    log_interval_s: float | None = seconds(60.0)
    metrics_port: int | None = whole(None, 0, 65_535)
    metrics_host: str = "127.0.0.1"
    user: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(conf: StormConfig | Mapping[str, Any] | None = None, **settings: Any) -> StormConfig:
        """Build from another config or a mapping; text values are read as the type of their key."""
        base = vars(conf) if isinstance(conf, StormConfig) else StormConfig.of_mapping(conf)
        given = {_STORMS_NAMES.get(name, name): value for name, value in {**base, **settings}.items()}
        return StormConfig(**read_settings(StormConfig, given))

    @staticmethod
    def for_one_component(name: str, value: Any) -> dict[str, Any]:
        """Return a setting of one component by its name here; settings of the whole topology are refused."""
        name = _STORMS_NAMES.get(name, name)
        if name not in StormConfig.__dataclass_fields__:
            return {name: value}
        if name not in _FOR_ONE_COMPONENT:
            raise ConfigError(
                f"{name} cannot be set for one component; it belongs to the whole topology. "
                f"For one component: {', '.join(_FOR_ONE_COMPONENT)}, and settings of your own"
            )
        return {name: getattr(StormConfig.of({name: value}), name)}

    def as_mapping(self) -> dict[str, Any]:
        """Return the settings by key, and the user's own beside them: the `conf` of spouts and bolts."""
        return {**self.user, **vars(self)}

    @property
    def ackers(self) -> int:
        """How many ackers there are."""
        return self.workers if self.acker_executors is None else self.acker_executors
