"""What users implement: spouts and bolts, and the collectors that they emit to. The names are Storm's.

All calls of one task come from one thread, and its collector may be used in that thread alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol, runtime_checkable

from trident.errors import TopologyError
from trident.storm.storm_tuples import StreamDeclarer, Tuple


class SpoutOutputCollector(Protocol):
    """Takes what a spout emits."""

    def emit(self, values: Sequence[Any], message_id: Any = None, stream_id: str = "default") -> Sequence[int]:
        """Emit a tuple; return the ids of the tasks that get it.

        With a `message_id`, which may be any object, the tuple is tracked: `ack(message_id)` or `fail(message_id)` of this
        very task is called later. Without one it is never mentioned again.
        """

    def emit_direct(self, task: int, values: Sequence[Any], message_id: Any = None, stream_id: str = "default") -> None:
        """Emit a tuple to one task, over a stream that was declared as direct."""

    def report_error(self, error: BaseException) -> None:
        """Show an error in the topology's status and log, without ending the worker."""

    @property
    def pending(self) -> int:
        """How many tracked tuples of this task are neither acknowledged nor failed."""


class OutputCollector(Protocol):
    """Takes what a rich bolt emits, and its answers. Every tuple must be answered with `ack` or `fail`."""

    def emit(
        self, values: Sequence[Any], anchors: Tuple | Iterable[Tuple] = (), stream_id: str = "default"
    ) -> Sequence[int]:
        """Emit a tuple; return the ids of the tasks that get it.

        If it fails, the spout tuples behind its `anchors` are failed. The anchors must not be answered yet. Without an
        anchor its failure has no consequence.
        """

    def emit_direct(
        self, task: int, values: Sequence[Any], anchors: Tuple | Iterable[Tuple] = (), stream_id: str = "default"
    ) -> None:
        """Emit a tuple to one task, over a stream that was declared as direct."""

    def ack(self, tuple: Tuple) -> None:
        """Say that this tuple is processed; what is anchored to it is still on its way."""

    def fail(self, tuple: Tuple) -> None:
        """Say that this tuple cannot be processed: fail the spout tuples behind it now, without waiting for the timeout."""

    def reset_timeout(self, tuple: Tuple) -> None:
        """Give the spout tuples behind this one the whole message timeout again."""

    def report_error(self, error: BaseException) -> None:
        """Show an error in the topology's status and log, without ending the worker."""


class BasicOutputCollector(Protocol):
    """Takes what a basic bolt emits; each tuple is anchored to the one that is executed."""

    def emit(self, values: Sequence[Any], stream_id: str = "default") -> Sequence[int]:
        """Emit a tuple; return the ids of the tasks that get it."""

    def emit_direct(self, task: int, values: Sequence[Any], stream_id: str = "default") -> None:
        """Emit a tuple to one task, over a stream that was declared as direct."""

    def reset_timeout(self, tuple: Tuple) -> None:
        """Give the spout tuples behind this one the whole message timeout again."""

    def report_error(self, error: BaseException) -> None:
        """Show an error in the topology's status and log, without ending the worker."""


@runtime_checkable
class IRichSpout(Protocol):
    """A spout: emits tuples one by one; `ack` and `fail` report by message id what became of them.

    It also has `declare_output_fields(declarer)`, or `get_output_fields()` for its only stream; `activate` and `deactivate`
    are called if it has them. A spout of Trident's (`trident.spout.rich.IRichSpout`) is one of these.
    """

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Connect; called once in the worker, before the first tuple."""

    def next_tuple(self) -> None:
        """Emit the next tuple, or several; return without one if there is none now."""

    def ack(self, msg_id: Any) -> None:
        """The whole tree of this message is processed."""

    def fail(self, msg_id: Any) -> None:
        """The tree of this message failed or timed out: emit it again."""

    def close(self) -> None:
        """Release everything. Not called when the worker is killed."""


@runtime_checkable
class IRichBolt(Protocol):
    """A bolt that answers each tuple itself, at once or later."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        """Connect; called once in the worker, before the first tuple."""

    def execute(self, tuple: Tuple) -> None:
        """Process a tuple: emit, and `ack` or `fail` it now or in a later call."""

    def cleanup(self) -> None:
        """Release everything. Not called when the worker is killed."""

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        """Declare the streams that it emits to."""


@runtime_checkable
class IBasicBolt(Protocol):
    """A bolt whose tuples are acknowledged when `execute` returns, and anchored by the framework.

    `FailedException` out of `execute` fails the tuple; any other exception ends the worker, which starts again.
    """

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Connect; called once in the worker, before the first tuple."""

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        """Process a tuple."""

    def cleanup(self) -> None:
        """Release everything. Not called when the worker is killed."""

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        """Declare the streams that it emits to."""


@runtime_checkable
class CustomStreamGrouping(Protocol):
    """Chooses tasks in the user's own way. It is pickled with the topology; one instance works for each emitting task."""

    def prepare(self, context: TopologyContext, source: tuple[str, str], target_tasks: Sequence[int]) -> None:
        """Get ready to choose among the tasks of one component, for one stream (component, stream)."""

    def choose_tasks(self, task_id: int, values: Sequence[Any]) -> Sequence[int]:
        """Return the tasks that get a copy of this tuple, each one of `target_tasks`."""


class _Component:
    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        """Declare the streams that it emits to; none unless overridden."""


class BaseRichSpout(_Component):
    """A spout with everything but `next_tuple`."""

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None: ...

    def close(self) -> None: ...

    def activate(self) -> None:
        """From now on `next_tuple` is called."""

    def deactivate(self) -> None:
        """`next_tuple` is not called until `activate` is."""

    def next_tuple(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no next_tuple()")

    def ack(self, msg_id: Any) -> None: ...

    def fail(self, msg_id: Any) -> None: ...


class BaseRichBolt(_Component):
    """A rich bolt with everything but `execute`; it keeps its collector as `self.collector`."""

    collector: OutputCollector

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        self.collector = collector

    def execute(self, tuple: Tuple) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no execute(tuple)")

    def cleanup(self) -> None: ...


class BaseBasicBolt(_Component):
    """A basic bolt with everything but `execute`."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None: ...

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no execute(tuple, collector)")

    def cleanup(self) -> None: ...


@dataclass(frozen=True)
class TopologyContext:
    """Where a task runs. It has the three attributes of the context of Trident's spouts, so such a spout runs here too.

    `task_id`: the number of the task in the topology, from 1.
    `task`, `tasks`: the number of the task in its component, from 0, and how many tasks that has.
    `worker`: the number of the worker that runs the task, from 0.
    `tasks_by_component`: the ids of the tasks of every component, in order.
    """

    topology: str
    component: str
    task_id: int
    task: int
    tasks: int
    worker: int
    tasks_by_component: Mapping[str, tuple[int, ...]]

    def component_tasks(self, component: str) -> tuple[int, ...]:
        """Return the ids of the tasks of a component; `TopologyError` if there is none of that name."""
        try:
            return self.tasks_by_component[component]
        except KeyError:
            raise TopologyError(f"no component {component!r} among {sorted(self.tasks_by_component)}") from None


def is_basic(bolt: IRichBolt | IBasicBolt) -> bool:
    """Whether a bolt is a basic one: the two kinds differ in what `execute` and `prepare` take."""
    return takes(bolt.execute, 2) and not (takes(bolt.execute, 1) and takes(bolt.prepare, 3))


def takes(method: Callable[..., object], arguments: int) -> bool:
    try:
        signature(method).bind(*range(arguments))
    except TypeError:
        return False
    return True
