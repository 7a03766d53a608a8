"""A user's process over each key of a stream, with a value and timers: `process`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

from trident.errors import TopologyError
from trident.fields import Fields
from trident.fluent.base import StreamBase, is_fields, refuse_state
from trident.fluent.windowing import check_own_names, event_time_type, keeping, spec_and_rest
from trident.graph import Member, WindowNode
from trident.operations.adapters import output_fields
from trident.operations.names import step_label
from trident.operations.timers import TimersConfig
from trident.operations.windows import EventTime, milliseconds
from trident.roles import has

S = TypeVar("S", bound=StreamBase)


def declare_process(
    stream: S,
    group: Fields,
    args: Sequence[Any],
    event_time: str | None,
    delay: timedelta,
    state_name: str | None,
) -> S:
    """Add the node of a process; see `GroupedStream.process`."""
    refuse_state(stream, "process")
    spec, rest = spec_and_rest(args)
    member = _member(stream, rest)
    config = _config(stream, event_time, delay)
    fields = group.concat(member.outputs, stream.get_name())
    check_own_names(stream, "a process", (*fields.names, *member.inputs.names))
    name = state_name or stream._label or f"{member.outputs.names[0]}-process"
    stream._topology._add_state(name, keeping(stream, config.what, name, spec, config.kept_ms))
    node = stream._child(
        step_label(config.what, member.aggregator, name), WindowNode, fields, state=name, inputs=member.inputs,
        window=config, group=group, grouped=True, member=member,
    )  # fmt: skip
    return type(stream)(stream._topology, node)


def _member(stream: StreamBase, args: Sequence[Any]) -> Member:
    if args and not is_fields(args[0]):
        args = [stream.fields, *args]
    inputs, process, out = stream._operation_args(args)
    if out is None or not len(out) or isinstance(process, type) or not has(process, "process", "on_timer"):
        raise TopologyError(
            f"stream {stream.get_name()!r}: process takes ([state,] [fields,] process, output fields); got {process!r}, "
            "expected an object with process(value, tuple, timers, collector) and on_timer(value, time, timers, "
            "collector), as a KeyedProcess has them, and the fields that it emits, with their types"
        )
    return Member(inputs, process, output_fields(process, out, stream.get_name()))


def _config(stream: StreamBase, event_time: str | None, delay: timedelta) -> TimersConfig:
    if event_time is None:
        if delay:
            raise TopologyError(
                f"stream {stream.get_name()!r}: process got delay={delay!r}, which is that of an event time: name its field, "
                "event_time='at'"
            )
        return TimersConfig()
    (event_time,) = stream._select([event_time]).names
    type_ = event_time_type(stream, event_time)
    return TimersConfig(
        event_time=EventTime(event_time, milliseconds("delay", delay, 0)).of_type(type_), time_type=type_
    )
