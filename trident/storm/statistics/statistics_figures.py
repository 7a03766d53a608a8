"""The statistics of a topology as typed values: for each window the figures of components, streams and executors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trident.observe.rolling_totals import ALL_TIME, window_over

__all__ = [
    "ComponentStatistics",
    "ExecutorStatistics",
    "Figures",
    "Kind",
    "StreamStatistics",
    "TopologyStatistics",
    "WindowStatistics",
    "WorkerStatus",
]

Kind = Literal["spout", "bolt", "acker"]


@dataclass(frozen=True)
class Figures:
    """What was counted. A latency is None if nothing was measured, a capacity if none belongs to it.

    Attributes
    ----------
    emitted, transferred
        Tuples that were emitted, and their copies that were sent to tasks.
    executed
        Tuples that a bolt was given, ticks left out.
    acked, failed
        By a bolt: tuples that it answered. Of a spout: its messages; `failed` contains those that timed out.
    execute_latency_ms
        The mean time within `execute`.
    process_latency_ms
        The mean time from the call of `execute` to the ack, of one tuple in about twenty.
    complete_latency_ms
        The mean time from a spout's emit to the ack of the whole tree.
    capacity
        The share of the last ten minutes in which an executor was busy: near 1 it cannot do more. Of a component it is that
        of its busiest executor.
    """

    emitted: int = 0
    transferred: int = 0
    executed: int = 0
    acked: int = 0
    failed: int = 0
    execute_latency_ms: float | None = None
    process_latency_ms: float | None = None
    complete_latency_ms: float | None = None
    capacity: float | None = None


@dataclass(frozen=True)
class StreamStatistics:
    """The figures of one stream: of an output, or of an input and then with the component that it comes from."""

    component: str
    stream: str
    figures: Figures


@dataclass(frozen=True)
class ExecutorStatistics:
    """The figures of one executor: the thread that runs these tasks."""

    tasks: tuple[int, ...]
    worker: int
    figures: Figures

    @property
    def name(self) -> str:
        """The first and the last task, as Storm names executors."""
        return f"[{self.tasks[0]}-{self.tasks[-1]}]"


@dataclass(frozen=True)
class ComponentStatistics:
    """The figures of a component, and of its streams and executors."""

    component: str
    kind: Kind
    tasks: int
    figures: Figures
    inputs: tuple[StreamStatistics, ...]
    outputs: tuple[StreamStatistics, ...]
    executors: tuple[ExecutorStatistics, ...]


@dataclass(frozen=True)
class WindowStatistics:
    """The statistics over one window.

    Attributes
    ----------
    window_s
        Its length; 0 for the whole time of the topology.
    seconds
        What it really covers: less while the topology is younger, at most a twentieth more after that.
    figures
        Of the topology: `emitted` and `transferred` of all components, the rest of its spouts.
    components
        Spouts, bolts, and the ackers as `__acker`.
    """

    window_s: int
    seconds: float
    figures: Figures
    components: Mapping[str, ComponentStatistics]


@dataclass(frozen=True)
class TopologyStatistics:
    """The statistics of a topology, over ten minutes, three hours, a day and all time."""

    windows: tuple[WindowStatistics, ...]

    def over(self, window_s: int = ALL_TIME) -> WindowStatistics:
        """Return those of one window: 600, 10,800 or 86,400 seconds, or 0 for all time.

        Raises
        ------
        KeyError
            There is no such window.
        """
        return window_over(self.windows, window_s)


@dataclass(frozen=True)
class WorkerStatus:
    """One worker as it was last heard of.

    Attributes
    ----------
    heard_s
        Seconds since then.
    pending
        Tracked messages of its spouts that are not answered.
    port
        Where other workers send to; 0 for one of this process.
    """

    number: int
    host: str
    pid: int
    uptime_s: float
    heard_s: float
    pending: int
    port: int = 0
