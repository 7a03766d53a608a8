"""A `Case` as a topology: its streams, its states, and what is kept of the questions that it asks in every batch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

from tests.harness.topology_runs import RowsSpout
from tests.run.random_cases import AT, UNTYPED, UNTYPED_KEYS, Case, Life, Row, Step
from tests.run.random_oracle import form_of, static_rows
from trident import Fields, JoinType, Stream, TridentCollector, TridentState, TridentTopology, TridentTuple
from trident.operations import (
    BaseStateUpdater,
    Count,
    Function,
    MapGet,
    Max,
    ReducerAggregator,
    SessionWindow,
    SlidingCountWindow,
    SnapshotGet,
    Sum,
    TumblingDurationWindow,
    col,
)
from trident.spout import IOpaquePartitionedTridentSpout, IPartitionedTridentSpout, SpoutType
from trident.state import StateConf, StateSpec

NewState = Callable[[str, str], StateSpec]
"""Makes the state of a name, of a kind."""

_HOUR = dt.timezone(dt.timedelta(hours=1))


class Batches(RowsSpout):
    """A spout over rows by txid; there is nothing beyond `last`."""

    def __init__(self, fields: str, rows: Mapping[int, Sequence[Row]], last: int, spout_type: SpoutType) -> None:
        super().__init__(fields, {txid: rows[txid] for txid in rows if txid <= last}, spout_type)
        self.last = last

    def emit_batch(self, batch_id: int, collector: TridentCollector) -> bool:
        super().emit_batch(batch_id, collector)
        return batch_id <= self.last


class Parts:
    """A partitioned spout over the same rows: coordinator and emitter too; one base below says what it promises."""

    def __init__(self, fields: str, rows: Mapping[int, Sequence[Row]], last: int, partitions: int) -> None:
        self.fields, self.rows, self.last, self.partitions = Fields(fields), rows, last, partitions

    def get_output_fields(self) -> Fields:
        return self.fields

    def get_coordinator(self, conf: Mapping[str, Any]) -> Any:
        return self

    def get_emitter(self, conf: Mapping[str, Any]) -> Any:
        return self

    def is_ready(self, txid: int) -> bool:
        return txid <= self.last

    def get_partitions_for_batch(self) -> list[str]:
        return [str(number) for number in range(self.partitions)]

    def emit_partition_batch_new(self, attempt: Any, collector: Any, partition: str, last_metadata: Any) -> Any:
        if attempt.txid > self.last:
            return last_metadata
        self.emit_partition_batch(attempt, collector, partition, int(attempt.txid))
        return int(attempt.txid)

    def emit_partition_batch(self, attempt: Any, collector: Any, partition: str, metadata: int) -> None:
        for row in self.rows[metadata][int(partition) :: self.partitions]:
            collector.emit(row)

    def success(self, txid: int, metadata: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class TransactionalParts(Parts, IPartitionedTridentSpout): ...


class OpaqueParts(Parts, IOpaquePartitionedTridentSpout): ...


class KeyAt(Function):
    """The key at the position that a request names."""

    def __init__(self, keys: Sequence[Row], types: Sequence[str]) -> None:
        self.keys, self.output_types = keys, tuple(types)

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        collector.emit(self.keys[int(tuple[0])])


class Asked:
    """A user's own state: the rows of each batch."""

    in_memory = True

    def __init__(self) -> None:
        self.rows: dict[int, dict[int, list[Row]]] = {}

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> _AskedPartition:
        return _AskedPartition(self.rows, partition_index)

    def of(self, txid: int) -> list[Row]:
        return [row for rows in self.rows.get(txid, {}).values() for row in rows]


class _AskedPartition:
    def __init__(self, rows: dict[int, dict[int, list[Row]]], partition: int) -> None:
        self.rows, self.partition, self.pending = rows, partition, list[Row]()

    def begin_commit(self, txid: int) -> None:
        self.pending = []

    def commit(self, txid: int) -> None:
        self.rows.setdefault(int(txid), {})[self.partition] = self.pending


class KeepAll(BaseStateUpdater[_AskedPartition]):
    def update_state(self, state: _AskedPartition, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        state.pending.extend(row.values for row in tuples)


class RowwiseSum(Sum):
    """`Sum`, row by row: a subclass has no kernel."""


class FoldedSum(ReducerAggregator[int]):
    """`Sum`, as a reducer."""

    output_types = ("bigint",)

    def init(self) -> int:
        return 0

    def reduce(self, curr: int, tuple: TridentTuple) -> int:
        return curr + (tuple[0] or 0)


class Add:
    """A `ValueUpdater` that adds."""

    def __init__(self, value: int) -> None:
        self.value = value

    def update(self, stored: int | None) -> int:
        return (stored or 0) + self.value


class SumUp(BaseStateUpdater[Any]):
    """A user's updater over a map: adds up the rows of each key, and writes the key in one of its spellings; may remove it."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        sums: dict[Row, tuple[Row, Row, int]] = {}
        for number, (*fields, value, _) in enumerate(tuples):
            key = tuple(UNTYPED_KEYS[int(part)] for part in fields) if UNTYPED in self.case.key else tuple(fields)
            spelled = tuple(respelled(part, number) for part in key)
            one = form_of(self.case, key)
            sums[one] = (tuple(fields), spelled, sums.get(one, ((), (), 0))[2] + (value or 0))
        removes = self.case.update == "map, removing"
        if gone := [spelled for _, spelled, value in sums.values() if removes and value < 0]:
            state.multi_remove(gone)
        found = [one for one in sums.values() if not removes or one[2] >= 0]
        new = state.multi_update([spelled for _, spelled, _ in found], [Add(value) for _, _, value in found])
        for (shown, _, _), value in zip(found, new, strict=True):
            collector.emit([*shown, value])


def respelled(part: Any, number: int) -> Any:
    """Return an equal value of the same type, in one of its spellings."""
    if number % 2 == 0:
        return part
    if isinstance(part, float) and part == 0:
        return -part
    if isinstance(part, dt.datetime) and part.tzinfo is not None:
        return part.astimezone(_HOUR)
    if isinstance(part, Decimal) and part.is_finite():
        return part * Decimal("1.000")
    return part


class Declared:
    """What was declared of a case: its states by the names of `expected`, and what was asked in every batch."""

    def __init__(self, case: Case, prefix: str) -> None:
        self.case, self.prefix = case, prefix
        self.states: dict[str, TridentState] = {}
        self.asked: dict[str, Asked] = {}

    def name(self, state: str) -> str:
        return f"{self.prefix}{state.replace(' ', '-')}"


def declare(
    topology: TridentTopology, case: Case, life: Life, until: int, new_state: NewState, prefix: str, keys: Sequence[Row]
) -> Declared:
    """Declare a case as a part of a topology, for a life that ends with batch `until`; `keys` are asked in every batch."""
    declared = Declared(case, prefix)
    key_fields = ", ".join(f"{name}: {type_}" for name, type_ in zip(case.names, case.types, strict=True))
    rows = {txid: [(*row, txid * AT) for row in rows] for txid, rows in enumerate(case.batches, 1)}
    stream = topology.new_stream(f"{prefix}rows", _source(case, f"{key_fields}, v: bigint, at: bigint", rows, until))
    for step in case.steps:
        stream = _step(topology, stream, case, step)
    main = _main(stream, case, key_fields, new_state(declared.name("total"), case.kind), declared.name("total"))
    declared.states["total"] = main.parallelism_hint(life.hint)
    for tap in case.taps:
        first = until == case.lives[0].batches
        behind = _TAPS[tap](_Tap(topology, case, life, first, stream, main, new_state, declared.name(f"{tap} state")))
        by: Any = behind.group_by(*case.names) if tap != "new values" or case.grouped else behind
        state = by.persistent_aggregate(
            new_state(declared.name(tap), case.kind), "x", Sum(), "sum", state_name=declared.name(tap)
        )
        declared.states[tap] = state.parallelism_hint(life.hint)
    if keys:
        asks = Batches(key_fields, dict.fromkeys(range(1, until + 1), keys), until, SpoutType.TRANSACTIONAL)
        staged = life.placement == "executors" and case.store.startswith("delta")  # not to be seen within the batch
        for sees in ("batch_before",) if staged else ("batch_before", "this_batch"):
            asking = topology.new_stream(f"{prefix}asks-{sees}", asks)
            found = _queried(asking, case, main, "x", sees)
            declared.asked[sees] = Asked()
            found.partition_persist(declared.asked[sees], [*case.names, "x"], KeepAll(), state_name=f"{prefix}{sees}")
        request = topology.new_drpc_stream(f"{prefix}drpc").each("args", KeyAt(keys, case.types), case.names)
        _queried(request, case, main, "x", "batch_before").project("x")
    return declared


def _source(case: Case, fields: str, rows: Mapping[int, Sequence[Row]], until: int) -> Any:
    if not case.partitions:
        return Batches(fields, rows, until, SpoutType(case.spout))
    return (OpaqueParts if case.spout == "opaque" else TransactionalParts)(fields, rows, until, case.partitions)


def _step(topology: TridentTopology, stream: Stream, case: Case, step: Step) -> Stream:
    if step.hint is not None:
        return _partitioned(stream, case, step.name).parallelism_hint(step.hint)
    changed: Stream = (
        _CHANGES[step.name](topology, stream, case) if step.name in _CHANGES else getattr(stream, step.name)()
    )
    return changed


def _partitioned(stream: Stream, case: Case, name: str) -> Stream:
    if name == "partition_by":
        return stream.partition_by(*case.names)
    if name == "partition_by v":
        return stream.partition_by("v")
    if name == "partition":
        return stream.partition(lambda row, count: (row["v"] or 0) % count)
    sent: Stream = getattr(stream, name)()
    return sent


def _sum(topology: TridentTopology, stream: Stream, case: Case) -> Stream:
    chain = stream.group_by(*case.names).chained_agg().aggregate("v", Sum(), "s").aggregate("at", Max(), "m")
    return chain.chain_end().select(*case.names, v=col("s"), at=col("m"))


def _plus_one(row: TridentTuple) -> tuple[Any, ...]:
    *key, value, at = row.values
    return (*key, None if value is None else value + 1, at)


_CHANGES: dict[str, Callable[[TridentTopology, Stream, Case], Stream]] = {
    "filter": lambda topology, stream, case: stream.filter("v", lambda v: v is not None and v > 0),
    "where": lambda topology, stream, case: stream.where(col("v") >= 0),
    "map": lambda topology, stream, case: stream.map(_plus_one),
    "flat_map": lambda topology, stream, case: stream.flat_map(lambda row: [row.values, row.values]),
    "sum": _sum,
    "merge": lambda topology, stream, case: topology.merge(stream, stream),
}

_AGGREGATORS: dict[str, Callable[[], Any]] = {
    "sum": Sum, "rowwise sum": RowwiseSum, "reduce": FoldedSum, "count": Count, "max": Max,
}  # fmt: skip


def _main(stream: Stream, case: Case, key_fields: str, spec: StateSpec, name: str) -> TridentState:
    if case.is_updated:
        fields = [*case.names, "v", "at"]
        return stream.partition_persist(spec, fields, SumUp(case), f"{key_fields}, x: bigint", state_name=name)
    by: Any = stream.group_by(*case.names) if case.grouped else stream
    state: TridentState = by.persistent_aggregate(spec, "v", _AGGREGATORS[case.update](), "x", state_name=name)
    return state


def _queried(stream: Stream, case: Case, state: TridentState, out: str, sees: Any) -> Stream:
    if case.grouped:
        return stream.state_query(state, case.names, MapGet(), f"{out}: bigint", sees=sees)
    return stream.state_query(state, SnapshotGet(), f"{out}: bigint", sees=sees)


@dataclass(frozen=True)
class _Tap:
    """What a tap is declared of."""

    topology: TridentTopology
    case: Case
    life: Life
    is_first_life: bool
    stream: Stream
    main: TridentState
    new_state: NewState
    name: str

    def state(self, kind: str = "opaque") -> Any:
        return self.new_state(self.name, kind)


def _joined_outer(tap: _Tap) -> Stream:
    names = tap.case.names
    sums = tap.stream.filter("v", lambda v: v is not None and v > 0).group_by(*names).aggregate("v", Sum(), "s")
    others = tap.stream.filter("v", lambda v: v is None or v <= 0).project(*names, "v")
    joined = tap.topology.join(sums, names, others, names, [*names, "s", "w"], JoinType.OUTER)
    return joined.parallelism_hint(tap.life.hint).each(["s", "w"], _of_sides, "x: bigint")


def _of_sides(s: int | None, w: int | None) -> int:
    return (s or 0) + 100 * (w or 0) + 1


def _joined(tap: _Tap) -> Stream:
    names = tap.case.names
    sums = tap.stream.group_by(*names).aggregate("v", Sum(), "s")
    out = [*names, "s", "w"]
    joined = tap.topology.join(sums, names, tap.stream.project(*names, "v"), names, out)
    return joined.parallelism_hint(tap.life.hint).each(lambda: 1, "x: bigint")


def _joined_within(tap: _Tap) -> Stream:
    names = tap.case.names
    joined = tap.topology.join_within(
        tap.stream, names, tap.stream, names, [*names, "v", "at", "w", "wat"],
        times="at", within=(timedelta(0), timedelta(milliseconds=AT)), state=tap.state(), state_name=tap.name,
    )  # fmt: skip
    return joined.parallelism_hint(tap.life.hint).each(lambda: 1, "x: bigint")


def _windowed_by_count(tap: _Tap) -> Stream:
    fired = tap.stream.group_by(*tap.case.names).window(
        SlidingCountWindow.of(3, 2), tap.state(), Count(), "x", state_name=tap.name
    )
    return fired.parallelism_hint(tap.life.hint)


def _queried_static(tap: _Tap) -> Stream:
    spec = tap.state("non-transactional")
    if tap.is_first_life:  # filled by nobody else
        state = spec.factory.make_state(StateConf(tap.topology.name, tap.name), 0, 1)
        there = static_rows(tap.case)
        state.begin_commit(1)
        state.multi_put(list(there), list(there.values()))
        state.commit(1)
        state.close()
    static = tap.topology.new_static_state(spec, tap.name)
    return tap.stream.state_query(static, tap.case.names, MapGet(), "x: bigint")


def _windowed(tap: _Tap) -> Stream:
    window = TumblingDurationWindow.of(timedelta(milliseconds=AT)).by_event_time("at")
    fired = tap.stream.group_by(*tap.case.names).window(window, tap.state(), "v", Sum(), "x", state_name=tap.name)
    return fired.parallelism_hint(tap.life.hint)


def _sessions(tap: _Tap) -> Stream:
    """The rows of a key in a batch are a session: they have one time, and the next batch a later one."""
    window = SessionWindow.of(timedelta(milliseconds=AT - 1), "at")
    fired, late = tap.stream.group_by(*tap.case.names).window_with_late_rows(
        window, tap.state(), "v", Sum(), "x", state_name=tap.name, parallelism=tap.life.hint
    )
    late.peek(_never)
    return fired


def _never(row: object) -> None:
    raise AssertionError(f"{row} is late")


_TAPS: dict[str, Callable[[_Tap], Stream]] = {
    "new values": lambda tap: tap.main.new_values_stream(),
    "query": lambda tap: _queried(tap.stream, tap.case, tap.main, "x", "batch_before"),
    "query this batch": lambda tap: _queried(tap.stream, tap.case, tap.main, "x", "this_batch"),
    "static": _queried_static,
    "window": _windowed,
    "sessions": _sessions,
    "count window": _windowed_by_count,
    "join": _joined,
    "outer join": _joined_outer,
    "join within": _joined_within,
}
