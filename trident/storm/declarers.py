"""What `set_spout` and `set_bolt` return: the calls that say how a component runs and what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike
from trident.storm.groupings import Grouping, GroupingKind, Subscription
from trident.storm.interfaces import CustomStreamGrouping
from trident.storm.storm_config import StormConfig
from trident.storm.streams import DEFAULT_STREAM


class SpoutDeclarer:
    """How a spout runs."""

    def __init__(self, declared: dict[str, Any], id: str) -> None:
        self._all, self._id = declared, id

    def set_num_tasks(self, tasks: int) -> Self:
        """Give the component this many instances; a later rebalance may then use up to as many threads.

        Raises
        ------
        TopologyError
            There are fewer tasks than executors, or less than one.
        """
        executors = self._all[self._id].executors
        if isinstance(tasks, bool) or not isinstance(tasks, int) or tasks < executors:
            raise TopologyError(
                f"set_num_tasks({tasks!r}) of component {self._id!r}: it has {executors} executors, "
                "and each needs at least one task"
            )
        return self._change(tasks=tasks)

    def add_configuration(self, name: str, value: Any) -> Self:
        """Set a setting for this component alone: one of `StormConfig`, or one of your own for its `conf`."""
        conf = self._all[self._id].conf
        return self._change(conf={**conf, **StormConfig.for_one_component(name, value)})

    def _change(self, **changes: Any) -> Self:
        self._all[self._id] = replace(self._all[self._id], **changes)
        return self


class BoltDeclarer(SpoutDeclarer):
    """How a bolt runs, and what it reads: one call for each stream that it subscribes to."""

    def shuffle_grouping(self, component: str, stream_id: str = DEFAULT_STREAM) -> Self:
        """Spread tuples evenly over the tasks."""
        return self._subscribe("shuffle", component, stream_id)

    def fields_grouping(self, component: str, fields: FieldsLike, stream_id: str = DEFAULT_STREAM) -> Self:
        """Send tuples with equal values of these fields to the same task."""
        return self._subscribe("fields", component, stream_id, _names(self._id, fields))

    def partial_key_grouping(self, component: str, fields: FieldsLike, stream_id: str = DEFAULT_STREAM) -> Self:
        """Send tuples with equal values of these fields to one of two tasks, the one that got less so far."""
        return self._subscribe("partial_key", component, stream_id, _names(self._id, fields))

    def all_grouping(self, component: str, stream_id: str = DEFAULT_STREAM) -> Self:
        """Send a copy of each tuple to every task."""
        return self._subscribe("all", component, stream_id)

    def global_grouping(self, component: str, stream_id: str = DEFAULT_STREAM) -> Self:
        """Send all tuples to one task, the one with the lowest id."""
        return self._subscribe("global", component, stream_id)

    def none_grouping(self, component: str, stream_id: str = DEFAULT_STREAM) -> Self:
        """Leave the choice to the framework, which shuffles."""
        return self._subscribe("none", component, stream_id)

    def direct_grouping(self, component: str, stream_id: str = DEFAULT_STREAM) -> Self:
        """Read a direct stream: its emitter names the task."""
        return self._subscribe("direct", component, stream_id)

    def local_or_shuffle_grouping(self, component: str, stream_id: str = DEFAULT_STREAM) -> Self:
        """Spread tuples evenly over the tasks of the emitter's own worker, or over all if it has none."""
        return self._subscribe("local_or_shuffle", component, stream_id)

    def custom_grouping(self, component: str, grouping: CustomStreamGrouping, stream_id: str = DEFAULT_STREAM) -> Self:
        """Let an object of yours choose the tasks."""
        if not isinstance(grouping, CustomStreamGrouping):
            raise TopologyError(
                f"custom_grouping of bolt {self._id!r}: {type(grouping).__name__} needs prepare(context, source, "
                "target_tasks) and choose_tasks(task_id, values)"
            )
        return self._add(Subscription(component, stream_id, Grouping("custom", chooser=grouping)))

    def _subscribe(self, kind: GroupingKind, component: str, stream_id: str, fields: Sequence[str] = ()) -> Self:
        return self._add(Subscription(component, stream_id, Grouping(kind, tuple(fields))))

    def _add(self, made: Subscription) -> Self:
        inputs = self._all[self._id].inputs
        for each in inputs:
            if (each.component, each.stream) == (made.component, made.stream):
                raise TopologyError(
                    f"bolt {self._id!r} reads stream {made.stream!r} of {made.component!r} twice "
                    f"({each.grouping.kind} and {made.grouping.kind}); choose one grouping"
                )
        return self._change(inputs=(*inputs, made))


def _names(bolt: str, fields: FieldsLike) -> tuple[str, ...]:
    names = Fields(fields).names
    if not names:
        raise TopologyError(f"bolt {bolt!r}: a grouping by fields needs at least one field")
    return names
