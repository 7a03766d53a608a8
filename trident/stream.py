"""Stream, GroupedStream and TridentState: the fluent surface. Every call checks its fields, then adds one node.

Handles are cheap and never change: a stream may be used several times, which forks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike
from trident.fluent.aggregating import (
    Aggregating,
    ChainedAggregatorDeclarer,
    by_name,
    declare,
    member_of,
    remove,
    results,
)
from trident.fluent.base import Declaration, child_of, is_fields, key_of, refuse_state, refuse_this_batch, spec_of
from trident.fluent.repartitioning import Repartitioning, memory_load
from trident.fluent.selecting import Selecting, is_sql, sql_texts
from trident.fluent.windowing import Windowing, declare_process
from trident.graph import (
    EachNode,
    FilterNode,
    MapNode,
    Migrate,
    Node,
    PeekNode,
    PersistNode,
    ProjectNode,
    QueryNode,
    StateNode,
)
from trident.naming import TridentNames
from trident.operations.adapters import (
    PlainConsumer,
    PlainFilter,
    PlainFlatMap,
    PlainFunction,
    PlainMap,
    adapt,
    check_query,
    check_texts,
    output_fields,
    query_types,
    refuse_migration,
    refuse_missing_output,
)
from trident.operations.builtin import Last
from trident.operations.expressions import Expression
from trident.operations.interfaces import ArrowFilter, ArrowFunction
from trident.operations.names import spread, step_label
from trident.operations.several import MultiAggregate
from trident.roles import has
from trident.state.interfaces import StateFactory, StateSpec


class Stream(Aggregating, Repartitioning, Selecting, Windowing["Stream"]):
    """Tuples of known fields, batch by batch."""

    def get_output_fields(self) -> Fields:
        return self.fields

    def name(self, name: str) -> Stream:
        """Label the stream: the next step and the next state that is declared on it carry the name."""
        if not isinstance(name, str) or not name or "/" in name or ":" in name:
            raise TopologyError(
                f"{name!r} cannot be the name of a stream, a text without '/' and ':', which join the names of steps"
            )
        return Stream(self._topology, self._node, name)

    def parallelism_hint(self, parallelism: int) -> Stream:
        """Ask for about this many Spark tasks for the steps up to here. The largest hint of a stage applies.

        Directly behind a window of each key, or `join_within`, it is the number of partitions of the state.
        """
        self._topology._hint(self._node.id, parallelism)
        return self

    def each(self, *args: Any) -> Stream:
        """Apply a function or a filter to some fields: `each(in, function, out)`, `each(function, out)`, `each(in, filter)`.

        The fields that a function emits are appended to the tuple; it emits any number of value lists per tuple, none
        drops it. A plain function gets the values of the input fields as arguments; a generator emits what it yields.

        Examples
        --------
        `each("line", Split(), "word")`, `each("line", lambda line: len(line), "n: int")`, `each("word", FilterNull())`
        """
        inputs, operation, out = self._each_args(args)
        if out is None and isinstance(operation, ArrowFunction):
            out = operation.output
        if out is None:
            refuse_missing_output("each", operation, out, self.get_name())
            return self._filter(inputs, operation, spread=True)
        function = adapt(operation, PlainFunction, spread=True, stream=self.get_name())
        self._check_vectorised(function, inputs)
        check_texts(function, inputs, self.get_name())
        outputs = output_fields(function, out, self.get_name())
        fields = self.fields.concat(outputs, self.get_name())
        label = step_label("each", function)
        return self._then(label, EachNode, fields, inputs=inputs, function=function, outputs=outputs)

    def filter(self, *args: Any) -> Stream:
        """Keep tuples: `filter(predicate)` sees the whole tuple, `filter(in, predicate)` the given fields."""
        if len(args) == 1 and isinstance(args[0], Expression):
            return self.where(args[0])
        if len(args) == 1:
            return self._filter(self.fields, args[0], spread=False)
        if len(args) == 2:
            return self._filter(self._select(args[0]), args[1], spread=True)
        raise self._wrong("filter takes (predicate) or (fields, predicate)")

    def map(self, function: Any, out: FieldsLike | None = None) -> Stream:
        """Replace every tuple by exactly one other. Without `out` the fields (and types) stay as they are."""
        return self._map(adapt(function, PlainMap, spread=False, stream=self.get_name()), out, flat=False)

    def flat_map(self, function: Any, out: FieldsLike | None = None) -> Stream:
        """Replace every tuple by any number of others. Without `out` the fields (and types) stay as they are."""
        return self._map(adapt(function, PlainFlatMap, spread=False, stream=self.get_name()), out, flat=True)

    def peek(self, consumer: Any) -> Stream:
        """Call `consumer` for every tuple, for its side effect, on the worker that has it."""
        consumer = adapt(consumer, PlainConsumer, spread=False, stream=self.get_name())
        return self._then(step_label("peek", consumer), PeekNode, self.fields, inputs=self.fields, consumer=consumer)

    def project(self, *fields: FieldsLike) -> Stream:
        """Keep the named fields, in the order named."""
        return self._then("project", ProjectNode, self._select(Fields(*fields)))

    def group_by(self, *fields: FieldsLike) -> GroupedStream:
        """Group by fields; the next step works per distinct key.

        SQL text with a name is computed first, as a field of that name: `group_by("shop", "date_trunc('day', at) AS day")`.
        """
        texts, _ = sql_texts(fields)
        if texts:
            names = iter([name for name, _ in texts])
            plain = [next(names) if is_sql(one) else one for one in fields]
            return self.select("*", **dict(texts)).group_by(*plain)
        return GroupedStream(self, key_of(self, Fields(*fields), "group_by"))

    def apply_assembly(self, assembly: Any) -> Stream:
        """Apply an assembly, or a function of a stream, which declares its steps here; return its stream."""
        if isinstance(assembly, type) or not (has(assembly, "apply") or callable(assembly)):
            raise self._wrong(f"{assembly!r} is not an assembly: give an object with apply(stream) or a function")
        with self._topology._inside_assembly() as nested:
            try:
                stream = assembly.apply(self) if has(assembly, "apply") else assembly(self)
            except RecursionError as error:
                if nested:  # the first of them knows the stream that the user knows
                    raise
                raise self._wrong(f"assembly {assembly!r} applies itself without end") from error
        if not isinstance(stream, Stream) or stream._topology is not self._topology:
            raise self._wrong(f"assembly {assembly!r} returned {stream!r}; it must return a stream of this topology")
        return stream

    def persistent_aggregate(
        self, state: StateFactory | StateSpec, *args: Any, state_name: str | None = None, migrate: Migrate | None = None
    ) -> TridentState:
        """Keep one aggregate of the whole stream in a snapshottable state: `(state, [in,] aggregator, out)`.

        A combiner writes in every batch, with `zero()` for an empty one; a reducer only if there are tuples. Several
        combiners by name are one value, a struct: see `GroupedStream.persistent_aggregate`, also for `migrate`.
        `state_name` is the stream's label (`name`) or the output field unless given.
        """
        return self._aggregate(Fields(), state, args, state_name, migrate)

    def partition_persist(
        self, state: StateFactory | StateSpec, *args: Any, state_name: str | None = None
    ) -> TridentState:
        """Give the tuples of each batch to a `StateUpdater`: `(state, [in,] updater[, out])`.

        What the updater emits, with the fields `out`, goes to `new_values_stream()`.
        """
        refuse_state(self, "partition_persist")
        inputs, updater, out = self._operation_args(args)
        if not has(updater, "update_state") or isinstance(updater, type):
            raise self._wrong(f"{updater!r} is not a StateUpdater: give an object with the method update_state")
        name = self._state_name(state_name, f"{self._node.id.split('/')[0]}-persist")
        outputs = output_fields(updater, out, self.get_name()) if out is not None else Fields()
        declared = self._topology._add_state(StateNode(name, spec_of(state), free_keys=True))
        label = step_label("persist", updater, name)
        node = child_of([self], label, PersistNode, outputs, state=name, inputs=inputs, updater=updater)
        return TridentState(self._topology, declared, node)

    def state_query(
        self, state: TridentState, *args: Any, sees: Literal["batch_before", "this_batch"] = "batch_before"
    ) -> Stream:
        """Look tuples up in a state: `(state, [in,] query_function, out)`; what it emits is appended.

        `MapGet` and `SnapshotGet` of a state of structs (as `Last` of several fields keeps) fill one output field with the
        struct, or as many as it has fields with these.

        Different from Storm: a query in batch t sees an opaque state exactly as after batch t-1, also in a replay. In
        any other state it may see what a failed attempt wrote, so its answers must not feed a state: `start` refuses
        that (`DirtyReadError`), unless the query is behind the state's own update, or no stream updates the state.

        Parameters
        ----------
        sees
            `"this_batch"`: the query in batch t runs after the state's update of batch t, and sees the state as after t,
            whichever tuples of the batch came first. That is the same in a replay, also of a transactional state. Not for
            static states, nor for DRPC requests.
        """
        inputs, function, out = self._operation_args(args)
        if out is None or not has(function, "batch_retrieve") or isinstance(function, type):
            raise self._wrong(
                f"state_query takes (state, [fields,] query function, output fields); got {function!r}, a query function is an "
                "object with batch_retrieve and execute"
            )
        if not isinstance(state, TridentState):
            raise self._wrong(
                "state_query asks a state, as persistent_aggregate, partition_persist and new_static_state return it; got "
                f"{state!r}"
            )
        if state._topology is not self._topology:
            raise TopologyError(f"stream {self.get_name()!r} queries state {state.state_name!r} of another topology")
        declared = state._state
        sees_batch = self._sees_batch(state, sees)
        check_query(function, inputs, declared.key_fields, declared.value, state.state_name, self.get_name())
        function = spread(function, declared.value, out, self.get_name())
        row_types = (*declared.key_fields.types, *declared.value.types)
        outputs = query_types(function, row_types, out, self.get_name())
        fields = self.fields.concat(outputs, self.get_name())
        label = step_label("query", function, state.state_name)
        return self._then(
            label, QueryNode, fields, state=state.state_name, inputs=inputs, function=function, outputs=outputs,
            sees_batch=sees_batch,
        )  # fmt: skip

    def _sees_batch(self, state: TridentState, sees: str) -> bool:
        if sees not in ("batch_before", "this_batch"):
            raise self._wrong(f"state_query got sees={sees!r}; it is 'batch_before' or 'this_batch'")
        if sees == "batch_before":
            return False
        if state._node is None:
            raise self._wrong(f"state {state.state_name!r} is static: no batch updates it; leave sees out")
        refuse_this_batch(self, state.state_name)
        return True

    def _stream_and_group(self) -> tuple[Stream, Fields]:
        return self, Fields()

    def _filter(self, inputs: Fields, operation: Any, spread: bool) -> Stream:
        filter_ = adapt(operation, PlainFilter, spread=spread, stream=self.get_name())
        self._check_vectorised(filter_, inputs)
        label = step_label("filter", filter_)
        return self._then(label, FilterNode, self.fields, inputs=inputs, filter=filter_, whole=not spread)

    def _check_vectorised(self, operation: Any, inputs: Fields) -> None:
        if isinstance(operation, (ArrowFilter, ArrowFunction)) and not len(inputs):
            raise self._wrong(
                f"{operation.name} works on Arrow arrays and needs input fields: without any it cannot tell how many tuples "
                "there are"
            )

    def _map(self, function: Any, out: FieldsLike | None, flat: bool) -> Stream:
        label = "flat_map" if flat else "map"
        if isinstance(function, ArrowFunction):
            out = function.output if out is None else out
            if function.flat is not flat:
                raise self._wrong(
                    f"{label} takes a vectorised function with flat={flat}, but {function.name} has flat={function.flat}"
                )
        fields = self.fields if out is None else output_fields(function, Fields(out), self.get_name())
        return self._then(
            step_label(label, function), MapNode, fields, inputs=self.fields, function=function, flat=flat
        )

    def _aggregate(
        self,
        group: Fields,
        state: StateFactory | StateSpec,
        args: Sequence[Any],
        name: str | None,
        migrate: Migrate | None,
    ) -> TridentState:
        call = "persistent_aggregate"
        refuse_state(self, call)
        spec, value = spec_of(state), self._state_name(name, "aggregates")
        made = by_name(self, args, value, call, group) or member_of(self, args, call, group, in_state=True)
        if made.combines and len(made.inputs) > 1 and not isinstance(made.aggregator, Last | MultiAggregate):
            raise self._wrong(f"a combiner takes one field, got {list(made.inputs.names)}")
        fields = group.concat(made.outputs, self.get_name())
        name = self._state_name(name, made.outputs.names[0])
        if migrate is not None:
            refuse_migration(migrate, spec, made.outputs, name)
        declared = self._topology._add_state(
            StateNode(name, spec, key_fields=group, value=made.outputs, migrate=migrate)
        )
        label = step_label("aggregate", made.aggregator, name)
        node = child_of([self], label, PersistNode, fields, state=name, inputs=made.inputs, aggregation=made)
        return TridentState(self._topology, declared, node)

    def _each_args(self, args: Sequence[Any]) -> tuple[Fields, Any, Fields | None]:
        if len(args) == 3:
            return self._select(args[0]), args[1], Fields(args[2])
        if len(args) == 2 and is_fields(args[0]):
            return self._select(args[0]), args[1], None
        if len(args) == 2:
            return Fields(), args[0], Fields(args[1])
        raise self._wrong(
            f"each takes (fields, function, output fields), (function, output fields) or (fields, filter); got {len(args)} "
            "arguments"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.get_name()!r}: {self.fields})"


class GroupedStream(Windowing[Stream]):
    """A stream with a key. Each distinct key of a batch is one call to the aggregator and one entry of the state."""

    def __init__(self, stream: Stream, group: Fields) -> None:
        self._stream, self._group = stream, group

    def get_group_fields(self) -> Fields:
        """Return the fields of the key."""
        return self._group

    def get_output_fields(self) -> Fields:
        return self._stream.fields

    def to_stream(self) -> Stream:
        """Return the stream without its groups."""
        return self._stream

    def name(self, name: str) -> GroupedStream:
        """Label the stream, as `Stream.name`."""
        return GroupedStream(self._stream.name(name), self._group)

    def each(self, *args: Any) -> GroupedStream:
        """Apply a function or a filter, as `Stream.each`; the stream stays grouped."""
        return GroupedStream(self._stream.each(*args), self._group)

    def partition_aggregate(self, *args: Any) -> GroupedStream:
        """Aggregate each key of each partition by itself: `([in,] aggregator, out)`; the stream stays grouped.

        Gives the grouping fields and what the aggregator gives.
        """
        member = member_of(self._stream, args, "partition_aggregate", self._group)
        return GroupedStream(declare(self._stream, [member], full=False), self._group)

    def aggregate(self, *args: Any) -> Stream:
        """Aggregate each key of the batch: `([in,] aggregator, out)`; gives the grouping fields and the result.

        A combiner is aggregated in each partition first. An empty batch gives nothing. Several combiners by name give a
        field each.
        """
        return self._stream._full_aggregate(self._group, args)

    def chained_agg(self) -> ChainedAggregatorDeclarer[Stream]:
        """Begin several aggregators over the same tuples of each key, as `Stream.chained_agg`."""
        return ChainedAggregatorDeclarer(self._stream, self._group)

    def persistent_aggregate(
        self, state: StateFactory | StateSpec, *args: Any, state_name: str | None = None, migrate: Migrate | None = None
    ) -> TridentState:
        """Keep one aggregate per key in a map state: `(state, [in,] aggregator, out)`.

        The key is the tuple of the grouping fields' values. A combiner is aggregated in the tasks first; a reducer
        sees every tuple where the state is. `new_values_stream()` gives the grouping fields and the new value.

        Several combiners by name, `(state, {"revenue": Sum("euros"), "orders": Count(), "mean": Avg("euros")}[, out])`, are
        one value: a struct with a field for each, and fields for what an aggregate must remember, as `mean_sum` and
        `mean_count`. `new_values_stream()` then gives the grouping fields and the results by their names. The state is
        called `state_name`, `out`, or "aggregates".

        Parameters
        ----------
        migrate
            For a value, aggregator or input that has changed since the log was written: a function that turns a stored
            value and the name of its former type into a value of the type that is declared now. For opaque states. New,
            dropped or renamed aggregates and wider types need none: see
            [changing a topology](changing-a-job.md).
        """
        return self._stream._aggregate(self._group, state, args, state_name, migrate)

    def state_query(
        self, state: TridentState, *args: Any, sees: Literal["batch_before", "this_batch"] = "batch_before"
    ) -> Stream:
        """Look tuples up in a state, as `Stream.state_query`."""
        return self._stream.state_query(state, *args, sees=sees)

    def process(
        self, *args: Any, event_time: str | None = None, delay: timedelta = timedelta(0), state_name: str | None = None
    ) -> Stream:
        """Pass the tuples of each key to a process, and call it back at times that it sets: `([state,] [in,] process, out)`.

        Each key has one value and any number of timers. They are kept in the state, which must be opaque, so they are exact
        under replays and restarts; without one they stay in memory. Gives the grouping fields and what the process emits. A
        batch passes on its tuples first; then the timers fire that its time has passed, in the order of their times.
        `parallelism_hint` on the result is the number of partitions of the state.

        Parameters
        ----------
        args
            Without `in` the process gets all fields. It is a `KeyedProcess`, or has its two methods.
        event_time
            The field with the time of the event, a timestamp or a bigint of milliseconds since 1970: timers fire when the
            watermark has come to them, which is the latest time of all keys less `delay`. None: by the time of the batch.
        state_name
            The stream's label (`name`), or the first field of `out` and `-process`, unless given.
        """
        return declare_process(self._stream, self._group, args, event_time, delay, state_name)

    def _stream_and_group(self) -> tuple[Stream, Fields]:
        return self._stream, self._group

    def __repr__(self) -> str:
        return f"GroupedStream({self._stream.get_name()!r} by {list(self._group.names)})"


class TridentState(TridentNames):
    """A declared state: a handle for `state_query`, for `RunningTopology.state` and for the stream of new values."""

    def __init__(self, topology: Declaration, state: StateNode, node: Node | None) -> None:
        self._topology, self._state, self._node = topology, state, node

    @property
    def state_name(self) -> str:
        """The state's name in the topology."""
        return self._state.name

    def parallelism_hint(self, parallelism: int) -> TridentState:
        """Ask for this many state partitions, where the store does not fix the number itself."""
        self._topology._hint(self._state.name if self._node is None else self._node.id, parallelism)
        return self

    def placement(self, where: str) -> TridentState:
        """Say where this state is committed, in place of the setting `state_placement`: `"auto"`, `"driver"`, `"executors"`."""
        if self._node is None:
            raise TopologyError(f"state {self.state_name!r} is static: nothing updates it, so it is committed nowhere")
        self._topology._place(self.state_name, where)
        return self

    def set_memory_load(self, on_heap_mb: float, off_heap_mb: float | None = None) -> TridentState:
        """Say how many MiB the updates take; as `Stream.set_memory_load`."""
        id_ = self._state.name if self._node is None else self._node.id
        self._topology._memory_mb[id_] = memory_load(on_heap_mb, off_heap_mb)
        return self

    def remove(self, stream: Stream, fields: FieldsLike | None = None) -> TridentState:
        """Remove the keys that the tuples of a stream name, in their own batch: the state keeps a value per key.

        A key that a batch removes is absent after it, even if the batch has tuples for it, none of which is counted
        then. The next batch starts it from nothing. `new_values_stream()` has no row for it; a feed of changes has one
        without a value after. A key that is absent already is ignored.

        `fields`: those of `stream` that name a key, in the order and of the types of the grouping fields; without it these.

        `TopologyError` if an updater chooses the keys, or there are none; or the stream is there only after the state's update.
        """
        remove(self._topology, self._state, stream, fields)
        return self

    def new_values_stream(self) -> Stream:
        """Return the stream of what the updates gave: key fields and new value, or what the updater emitted."""
        if self._node is None:
            raise TopologyError(f"state {self.state_name!r} is static: nothing updates it, so it has no new values")
        if not len(self._node.fields):
            raise TopologyError(
                f"state {self.state_name!r} gives no new values: name the updater's output fields in partition_persist"
            )
        new, node = Stream(self._topology, self._node), self._node
        aggregation = node.aggregation if isinstance(node, PersistNode) else None
        if aggregation and isinstance(aggregation.aggregator, MultiAggregate):
            return results(new, aggregation)
        return new

    def __repr__(self) -> str:
        return f"TridentState({self.state_name!r})"
