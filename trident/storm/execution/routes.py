"""Groupings at work: each chooses, for the values of one tuple, the tasks of one bolt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from random import Random
from typing import Any
from zlib import crc32

from trident.errors import TopologyError
from trident.fields import Fields
from trident.state.encoding.codec import encode
from trident.state.encoding.equal_keys import canonical_key
from trident.storm.interfaces import TopologyContext
from trident.storm.storm_topology import Grouping
from trident.types import class_of

Chooser = Callable[[Sequence[Any]], Sequence[int]]

_REMEMBERED = 1 << 16


def chooser_of(
    grouping: Grouping,
    source: tuple[str, str],
    fields: Fields,
    context: TopologyContext,
    tasks: Sequence[int],
    local: Sequence[int],
    random: Random,
) -> Chooser:
    """Return what a grouping does for one emitting task.

    Parameters
    ----------
    source, fields
        The component and stream that are read, and the stream's fields.
    tasks, local
        The tasks of the reading bolt; which of them run in the emitter's worker.
    """
    positions = [fields.position(name) for name in grouping.fields]
    match grouping.kind:
        case "fields":
            return _by_hash(positions, fields, tasks)
        case "partial_key":
            return _lesser_of_two(positions, tasks)
        case "all":
            every = tuple(tasks)
            return lambda values: every
        case "global":
            lowest = (min(tasks),)
            return lambda values: lowest
        case "local_or_shuffle":
            return _in_turn(local or tasks, random)
        case "custom":
            return _custom(grouping, source, context, tasks)
        case _:
            return _in_turn(tasks, random)


def _in_turn(tasks: Sequence[int], random: Random) -> Chooser:
    """A shuffled round: every task gets its turn, and emitters do not all begin with the same one."""
    following = cycle([(task,) for task in random.sample(list(tasks), len(tasks))]).__next__
    return lambda values: following()


def _by_hash(positions: Sequence[int], fields: Fields, tasks: Sequence[int]) -> Chooser:
    choices = [(task,) for task in tasks]
    count = len(choices)
    if count == 1:
        (only,) = choices
        return lambda values: only

    def hashed(key: Sequence[Any]) -> tuple[int]:
        return choices[crc32(encode(canonical_key(tuple(key)))) % count]

    if len(positions) > 1:
        return lambda values: hashed([values[at] for at in positions])
    (position,) = positions
    if class_of(fields.types[position]) in (str, bytes, int):
        remembered = _Remembered(hashed)
        return lambda values: remembered[values[position]]
    of_class = {each: _Remembered(hashed) for each in (str, int, bytes)}

    def of_any(values: Sequence[Any]) -> tuple[int]:
        value = values[position]
        known = of_class.get(type(value))
        return hashed([value]) if known is None else known[value]

    return of_any


class _Remembered(dict[Any, tuple[int]]):
    """The tasks of values of one class and of None. Values of two classes may be equal, and belong to two tasks."""

    def __init__(self, hashed: Callable[[Sequence[Any]], tuple[int]]) -> None:
        super().__init__()
        self._hashed = hashed

    def __missing__(self, value: Any) -> tuple[int]:
        if len(self) >= _REMEMBERED:
            self.clear()
        self[value] = found = self._hashed([value])
        return found


def _lesser_of_two(positions: Sequence[int], tasks: Sequence[int]) -> Chooser:
    sent, count = dict.fromkeys(tasks, 0), len(tasks)

    def choose(values: Sequence[Any]) -> tuple[int]:
        data = encode(canonical_key(tuple([values[at] for at in positions])))
        first = crc32(data) % count
        second = (first + 1 + crc32(data[::-1]) % (count - 1)) % count if count > 1 else first  # never the same one
        chosen = min(tasks[first], tasks[second], key=sent.__getitem__)
        sent[chosen] += 1
        return (chosen,)

    return choose


def _custom(grouping: Grouping, source: tuple[str, str], context: TopologyContext, tasks: Sequence[int]) -> Chooser:
    chooser = grouping.chooser
    assert chooser is not None
    known = frozenset(tasks)
    chooser.prepare(context, source, tuple(tasks))

    def choose(values: Sequence[Any]) -> Sequence[int]:
        chosen = tuple(chooser.choose_tasks(context.task_id, values))
        if not known.issuperset(chosen):
            raise TopologyError(
                f"{type(chooser).__name__}.choose_tasks for stream {source[1]!r} of component {source[0]!r} returned "
                f"{chosen}; the tasks to choose from are {tuple(tasks)}"
            )
        return chosen

    return choose
