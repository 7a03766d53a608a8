"""Windows over a stream or over each key of it, `window` and its like, and a user's process over each key: `process`."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

from trident.fields import Fields, FieldsLike
from trident.fluent.aggregating import by_name, member_of
from trident.fluent.base import StreamBase, is_fields, refuse_state, spec_of
from trident.graph import Aggregation, FilterNode, ProjectNode, SelectNode, StateNode, WindowNode
from trident.naming import TridentNames
from trident.operations.adapters import output_fields
from trident.operations.expressions import Expression, col
from trident.operations.names import step_label
from trident.operations.several import result_fields
from trident.operations.windows import (
    LATE,
    EventTime,
    SessionWindow,
    SlidingCountWindow,
    SlidingDurationWindow,
    TimersConfig,
    TumblingCountWindow,
    TumblingDurationWindow,
    WindowConfig,
    late_field,
)
from trident.roles import has
from trident.state.encoding.serializers import type_not_written
from trident.state.interfaces import REPLAY_WINDOW_S, StateSpec, StateType, is_factory

S = TypeVar("S", bound=StreamBase)

EVENT_TIMES = {"timestamp": "timestamp", "timestamp_ntz": "timestamp_ntz", "bigint": "timestamp"}


class Windowing(TridentNames, Generic[S]):
    """The calls of `Stream` and of `GroupedStream` that make windows."""

    def window(
        self, config: WindowConfig, *args: Any, bounds: FieldsLike | None = None, state_name: str | None = None
    ) -> S:
        """Aggregate each window: `(config, [state,] [in,] aggregator, out)`; gives the grouping fields and the result.

        What windows hold is stored in the state, which must be opaque, so it is exact under replays and restarts; without
        one it stays in memory. A window fires in the batch that completes it, once for each key that has tuples in it.
        Of a grouped stream a count window counts the tuples of each key by themselves, and `parallelism_hint` on the
        result is the number of partitions of the state; without a group there is one.

        Several combiners by name, `(config, [state,] {"revenue": Sum("euros"), "orders": Count()}[, out])`, give a field each.

        `config`: `TumblingCountWindow`, `SlidingCountWindow`, `TumblingDurationWindow`, `SlidingDurationWindow` or
        `SessionWindow`, by their `of`. Sessions are those of each key of a grouped stream.
        `bounds`: names of two fields that stand before the aggregator's: where the window begins and where it ends (the end is
        not in it). Timestamps; of a count window positions, from 0. Of a session the times of its first and of its last tuple.
        `state_name`: the stream's label (`name`), or the first field of `out` and `-window`, unless given; of several
        aggregates `aggregates-window`.
        """
        stream, group = self._stream_and_group()
        return _declare(stream, group, config, args, bounds, state_name, Fields())

    def window_with_late_rows(
        self,
        config: WindowConfig,
        *args: Any,
        bounds: FieldsLike | None = None,
        state_name: str | None = None,
        parallelism: int | None = None,
    ) -> tuple[S, S]:
        """Do as `window`, by event time; return its stream, and the stream of the tuples that come too late for it.

        A late tuple has all fields of the stream, and comes out in the batch in which it came. For this all tuples go to the
        window, also where partial results would do.

        `config`, `bounds`, `state_name`: as of `window`; `config` must be by event time.
        `parallelism`: what `parallelism_hint` says behind `window`: the number of partitions of the state.

        Examples
        --------
        `sessions, late = clicks.group_by("user").window_with_late_rows(SessionWindow.of(gap, "at"), Count(), "clicks")`
        """
        stream, group = self._stream_and_group()
        fired = _declare(stream, group, config, args, bounds, state_name, stream.fields)
        if parallelism is not None:
            stream._topology._hint(fired._node.id, parallelism)
        results = [name for name in fired.fields.names if not name.startswith(LATE)]
        windows = _where(fired, "windows", col(LATE).is_null())._then(
            "project", ProjectNode, fired.fields.select(results)
        )
        rows = tuple(col(late_field(name)) for name in stream.fields.names)
        return windows, _where(fired, "late", col(LATE))._then("select", SelectNode, stream.fields, expressions=rows)

    def tumbling_window(
        self, length: int | timedelta, *args: Any, bounds: FieldsLike | None = None, state_name: str | None = None
    ) -> S:
        """Aggregate every `length` tuples, or each duration: `(length, [state,] [in,] aggregator, out)`; as `window`."""
        by_time = isinstance(length, timedelta)
        config = TumblingDurationWindow.of(length) if by_time else TumblingCountWindow.of(length)  # type: ignore[arg-type]
        return self.window(config, *args, bounds=bounds, state_name=state_name)

    def sliding_window(
        self,
        length: int | timedelta,
        slide: int | timedelta,
        *args: Any,
        bounds: FieldsLike | None = None,
        state_name: str | None = None,
    ) -> S:
        """Aggregate the last `length` after every `slide`: `(length, slide, [state,] [in,] aggregator, out)`; as `window`.

        Both are numbers of tuples, or both durations.
        """
        by_time = isinstance(length, timedelta)
        if by_time is not isinstance(slide, timedelta):
            raise self._stream_and_group()[0]._wrong(
                f"a window with length {length!r} and slide {slide!r}: give two numbers of tuples, or two timedeltas"
            )
        kind: Any = SlidingDurationWindow if by_time else SlidingCountWindow
        return self.window(kind.of(length, slide), *args, bounds=bounds, state_name=state_name)

    @abstractmethod
    def _stream_and_group(self) -> tuple[S, Fields]:
        """Return the stream, and the grouping fields; none if it is not grouped."""


def _declare(
    stream: S,
    key: Fields,
    config: WindowConfig,
    args: Sequence[Any],
    bounds: FieldsLike | None,
    state_name: str | None,
    late: Fields,
) -> S:
    refuse_state(stream, "a window")
    if not isinstance(config, WindowConfig):
        raise stream._wrong(
            f"window takes (config, [state,] [fields,] aggregator, output fields); {config!r} is not a window configuration, "
            "as TumblingCountWindow.of(100) is"
        )
    if isinstance(config, SessionWindow) and not key:
        raise stream._wrong(
            f"a window of {config} needs a key that the sessions belong to: group the stream first, group_by('user').window(…)"
        )
    if len(late) and config.event_time is None:
        raise stream._wrong(
            f"no tuple is late for a window of {config}: call window, or give a config by event time, such as "
            "TumblingDurationWindow.of(…).by_event_time('at')"
        )
    if config.event_time is not None:
        config = config.with_time_type(event_time_type(stream, config.event_time.field))
    spec, rest = spec_and_rest(args)
    limits, named = _bounds(stream, config, bounds), by_name(stream, rest, "aggregates", "window", key)
    member = named or member_of(stream, rest, "window", key)
    key.concat(member.outputs, stream.get_name())  # both are kept, so their names must differ
    given = member.outputs if named is None else result_fields(named.aggregator)
    fields = key.concat(limits, stream.get_name()).concat(given, stream.get_name())
    check_own_names(stream, "a window cannot take or give", (*fields.names, *member.inputs.names, *late.names))
    if len(late):
        fields = fields.concat(Fields.of([LATE, *map(late_field, late.names)], ["boolean", *late.types]))
    return _add_timed_node(stream, config, member, fields, spec, state_name, bounds=limits, late=late)


def _add_timed_node(
    stream: S,
    config: WindowConfig,
    member: Aggregation,
    fields: Fields,
    spec: StateSpec,
    name: str | None,
    **more: Fields,
) -> S:
    name = stream._state_name(name, f"{member.outputs.names[0]}-{config.what}")
    kept = keeping(stream, config.what, name, spec, config.kept_ms, by_key=len(member.group) > 0)
    stream._topology._add_state(StateNode(name, kept))
    label, more = step_label(config.what, member.aggregator, name), {"inputs": member.inputs, **more}
    return stream._then(label, WindowNode, fields, state=name, window=config, member=member, **more)


def check_own_names(stream: StreamBase, what: str, names: Iterable[str]) -> None:
    reserved = [name for name in names if name.startswith("$")]
    if reserved:
        raise stream._wrong(f"{what} {reserved[0]!r}: names that begin with $ are reserved; rename the field")


def _where(stream: S, label: str, condition: Expression) -> S:
    return stream._then(label, FilterNode, stream.fields, inputs=stream.fields.select([LATE]), filter=condition)


def spec_and_rest(args: Sequence[Any]) -> tuple[StateSpec, Sequence[Any]]:
    from states.memory import MemoryMapState

    if args and (isinstance(args[0], StateSpec) or is_factory(args[0])):
        return spec_of(args[0]), args[1:]
    return MemoryMapState.opaque(), args


def keeping(
    stream: StreamBase, what: str, name: str, spec: StateSpec, kept_ms: int | None, by_key: bool = True
) -> StateSpec:
    """Return the spec, with one partition if there is no key; `TopologyError` where it cannot keep rows so long."""
    kind = spec.kind
    if kind is not None and kind is not StateType.OPAQUE:
        raise stream._wrong(
            f"the {what} keeps what it holds in state {name!r}, which is {kind.value}; only an opaque state lets a replay take "
            f"back what a failed attempt put into a {what}: use the opaque state of the same store"
        )
    if spec.facts.forgets:
        raise stream._wrong(
            f"the {what} keeps what it holds in state {name!r}, which forgets entries that were not used for long: tuples "
            "would be missing. Use a state that keeps everything"
        )
    if type_not_written(spec.facts.serializer, "binary"):
        raise stream._wrong(
            f"the {what} keeps bytes in state {name!r}, and serializer='json' has none: leave serializer out of that state"
        )
    _check_expiry(stream, what, name, spec.facts.expires_after_s, kept_ms)
    if by_key:
        return spec
    if spec.required_num_partitions not in (None, 1):
        raise stream._wrong(
            f"state {name!r} insists on {spec.required_num_partitions} partitions, but a {what} of a whole stream has one, "
            "because all of it fires together: group the stream, or leave out num_partitions"
        )
    return replace(spec, required_num_partitions=1)


def _check_expiry(stream: StreamBase, what: str, name: str, ttl_s: float | None, kept_ms: int | None) -> None:
    """Refuse a state whose values expire before they are needed for the last time: after a standstill of a day, too."""
    if ttl_s is None:
        return
    standstill_s = REPLAY_WINDOW_S if ttl_s >= REPLAY_WINDOW_S else 0  # less was allowed by name
    least_s = None if kept_ms is None else -(-kept_ms // 1000) + standstill_s
    if least_s is not None and ttl_s >= least_s:
        return
    cure = "leave ttl_s out, because what is no longer needed is overwritten or removed"
    if least_s is None:
        until = (
            "your code lets go of them" if what == "process" else "there are enough of them, however long that takes"
        )
        needed = f"until {until}: {cure}"
    else:
        also = ", a day of which is for a standstill" if standstill_s else ""
        needed = f"for {timedelta(milliseconds=kept_ms or 0)}: {cure}, or give at least {least_s}{also}"
    kept = "values and timers" if what == "process" else "tuples"
    raise stream._wrong(
        f"the {what} keeps {kept} in state {name!r}, whose values expire {ttl_s:.12g} seconds after they were written (ttl_s), "
        f"and it needs them {needed}"
    )


def _bounds(stream: StreamBase, config: WindowConfig, bounds: FieldsLike | None) -> Fields:
    type_ = "bigint" if config.counts else "timestamp"
    if config.event_time is not None:
        type_ = EVENT_TIMES[event_time_type(stream, config.event_time.field)]
    if bounds is None:
        return Fields()
    named = Fields(bounds)
    if len(named) != 2 or any(own not in (None, type_) for own in named.types):
        raise stream._wrong(
            f"bounds={bounds!r}: name two fields, for where the window begins and where it ends; here they are {type_}"
        )
    return Fields.of(named.names, [type_, type_])


def event_time_type(stream: StreamBase, field: str) -> str:
    (type_,) = stream.fields.select([field], stream.get_name()).types
    if type_ not in EVENT_TIMES:
        raise stream._wrong(
            f"the event time {field!r} is {type_}; it must be a timestamp, a timestamp_ntz, or a bigint of milliseconds since "
            f"1970. The stream has {stream.fields}"
        )
    return type_


def declare_process(
    stream: S, group: Fields, args: Sequence[Any], event_time: str | None, delay: timedelta, state_name: str | None
) -> S:
    refuse_state(stream, "process")
    spec, args = spec_and_rest(args)
    if args and not is_fields(args[0]):
        args = [stream.fields, *args]
    inputs, process, out = stream._operation_args(args)
    if out is None or not len(out) or isinstance(process, type) or not has(process, "process", "on_timer"):
        raise stream._wrong(
            f"process takes ([state,] [fields,] process, output fields); got {process!r}, expected an object with "
            "process(value, tuple, timers, collector) and on_timer(value, time, timers, collector), as a KeyedProcess has "
            "them, and the fields that it emits, with their types"
        )
    member = Aggregation(inputs, process, output_fields(process, out, stream.get_name()), group=group)
    config = _config(stream, event_time, delay)
    fields = group.concat(member.outputs, stream.get_name())
    check_own_names(stream, "a process cannot take or give", (*fields.names, *member.inputs.names))
    return _add_timed_node(stream, config, member, fields, spec, state_name)


def _config(stream: StreamBase, event_time: str | None, delay: timedelta) -> TimersConfig:
    if event_time is None:
        if delay:
            raise stream._wrong(
                f"process got delay={delay!r}, which is that of an event time: name its field, event_time='at'"
            )
        return TimersConfig()
    times = EventTime.of(event_time, delay)
    type_ = event_time_type(stream, times.field)
    return TimersConfig(event_time=times.of_type(type_), time_type=type_)
