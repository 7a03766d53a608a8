"""Processes with timers: what their state holds, and one batch within the commit of that state.

First the tuples, in the order in which they came; then the timers that the batch passes, in the order of their times, and of
one time in an order of the keys that is always the same. A timer that is set meanwhile, and is not later than the batch, is one
of them. So what is called in a batch depends on the state before it and on its tuples alone.

    ("key", *key)    -> version, when to look at the key, the value, the times of its timers, ascending
    ("windows",)     -> the directory of `timer_index`, with how far time has come, and its chunks
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from trident.arrow import schema_of
from trident.errors import CorruptValueError, describe
from trident.fields import Fields
from trident.graph import WindowNode
from trident.naming import shown
from trident.operations.windows import Timers, TimersConfig, time_of
from trident.state.encoding.codec import encode, encode_tuples
from trident.state.interfaces import Key
from trident.steps.failures import AtStep, Failure, StepFailed, calls_user_code, failure_of
from trident.steps.key_columns import Ints, keys_of
from trident.steps.rows import Emitted, StepRun, columns_of, iterate
from trident.tuples import TridentTuple
from trident.windows.timer_index import NEVER, DueRecords, keys_together
from trident.windows.window_partitions import Moment, Share


class Kept(NamedTuple):
    """The value of a key, and the times of its timers."""

    value: Any
    times: set[int]


def update_timers(node: WindowNode, state: Any, share: Share) -> pa.Table:
    """Process a batch in a partition of the state, between `begin_commit` and `commit`; return what the user's code emits."""
    tables, moment, run = share.tables, share.moment, share.run
    of = node.group, share.place, node.config.times, "the timers of a process"
    records = DueRecords(state, *of, [None, []])
    now = _now(node, records.frontier, moment)
    rows = schema_of(node.fields).empty_table()
    if now is not None and (tables or _must_run(node, records, now, moment)):
        came = pa.concat_tables(tables) if tables else None
        concerned = [records.take(now), *([] if came is None else [came])]
        keys, names, ids = keys_together(node.group, concerned)
        (values, times), _ = records.read(names)
        kept = [Kept(value, set(of_key)) for value, of_key in zip(values, times, strict=True)]
        calls = _Calls(node, run, keys, kept, now)
        if came is not None:
            calls.process(came, ids[len(ids) - came.num_rows :])
        with AtStep(node.id, lambda: calls.key):
            calls.fire()
        rows = calls.rows()
        _write(node, records, names, keys, calls.kept, now)
    if node.config.by_batch_time and records.earliest is not None:
        run.timers.append(-(-records.earliest // node.config.per_ms))
    return rows


def _write(
    node: WindowNode, records: DueRecords, names: Sequence[Key], keys: pa.Table, kept: Sequence[Kept], now: int
) -> None:
    due = np.array([min(one.times, default=NEVER) for one in kept], np.int64)
    noted = [[one.value for one in kept], [sorted(one.times) for one in kept]]
    try:
        records.keep(keys, [(due, now)], now, noted, [one.value is None and not one.times for one in kept])
    except (CorruptValueError, TypeError):
        for name, (value, _) in zip(names, kept, strict=True):
            try:
                encode([value])  # as deep as in its record
            except (CorruptValueError, TypeError) as error:
                cause = f"the value {shown(value)} of key {name[1:]!r} cannot be stored: {error}"
                raise StepFailed(Failure(node.id, None, cause, retry=False)) from error
        raise


def _now(node: WindowNode, before: int | None, moment: Moment) -> int | None:
    """Return how far time comes with the batch: to the watermark, or to its time, which the log has."""
    if node.config.event_time is not None:
        return moment.watermark(before, node.config.event_time)
    assert moment.now is not None, node
    return moment.now.ms * node.config.per_ms


def _must_run(node: WindowNode, records: DueRecords, now: int, moment: Moment) -> bool:
    """Whether there is something to do without tuples: keys may be due, or the watermark must be stored."""
    begun = records.earliest is not None and records.earliest <= now
    moved = node.config.event_time is not None and now != records.frontier  # the time of a batch is in the log
    return begun or moved or records.must_write(moment.given)


class _Calls:
    """Calls the user's code, key by key.

    `kept`: the value and the timers of each key, as the calls left them.
    `key`: the key that is called now, when timers fire.
    """

    def __init__(self, node: WindowNode, run: StepRun, keys: pa.Table, kept: list[Kept], now: int) -> None:
        self._node, self._run, self._code, self._now = node, run, node.member.aggregator, now
        self._keys, self.kept, self.key = keys_of(keys, keys.column_names), kept, TridentTuple(Fields(), ())
        self._out = Emitted(node.id, node.member.outputs, run.on_error, keys.num_rows)

    def process(self, came: pa.Table, ids: Ints) -> None:
        numbers = ids.tolist()
        timers = [self._timers(at) for at in range(len(self.kept))]

        def visit(at: int, row: TridentTuple) -> None:
            number = numbers[at]
            self._call(number, self._code.process, row, timers[number])

        iterate(self._node.id, came, self._node.member.inputs, self._run.on_error, visit)

    @calls_user_code
    def fire(self) -> None:
        """Call back for each timer that time has passed."""
        order = encode_tuples(self._keys)
        queue = [(min(one.times), order[at], at) for at, one in enumerate(self.kept) if one.times]
        heapify(queue)
        while queue and queue[0][0] <= self._now:
            time, name, at = heappop(queue)
            times = self.kept[at].times
            times.discard(time)
            self._fire(at, time)
            if times:
                heappush(queue, (min(times), name, at))

    def _fire(self, at: int, ordinate: int) -> None:
        timers, time = self._timers(at, ordinate), time_of(ordinate, self._time_type)
        try:
            self._call(at, self._code.on_timer, time, timers)
        except StepFailed:
            raise
        except Exception as error:
            cause = f"on_timer of key {self._keys[at]!r} at {time} raised {describe(error)}"
            raise StepFailed(replace(failure_of(self._node.id, error), cause=cause)) from error

    def _timers(self, at: int, fires: int | None = None) -> Timers:
        self.key = TridentTuple(self._node.group, tuple(self._keys[at]))
        return Timers(self.key, self._now, self.kept[at].times, self._time_type, fires)

    @property
    def _time_type(self) -> str:
        assert isinstance(self._node.config, TimersConfig), self._node
        return self._node.config.time_type

    def _call(self, at: int, method: Callable[..., Any], given: Any, timers: Timers) -> None:
        self._out.at = at
        self.kept[at] = self.kept[at]._replace(value=method(self.kept[at].value, given, timers, self._out))

    def rows(self) -> pa.Table:
        rows = [(*self._keys[at], *row) for at, row in zip(self._out.parents, self._out.rows, strict=True)]
        return pa.table(columns_of(self._node.id, self._node.fields, rows), schema=schema_of(self._node.fields))
