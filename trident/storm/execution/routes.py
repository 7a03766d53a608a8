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
from trident.storm.groupings import Grouping
from trident.storm.interfaces import TopologyContext

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
            return _by_hash(positions, tasks)
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


def _by_hash(positions: Sequence[int], tasks: Sequence[int]) -> Chooser:
    choices = [(task,) for task in tasks]
    count = len(choices)
    if count == 1:
        (only,) = choices
        return lambda values: only
    remembered: dict[type, dict[Any, tuple[int]]] = {str: {}, int: {}, bytes: {}}

    def hashed(values: Sequence[Any]) -> tuple[int]:
        return choices[crc32(encode(canonical_key(tuple([values[at] for at in positions])))) % count]

    if len(positions) > 1:
        return hashed
    (position,) = positions

    def remembering(values: Sequence[Any]) -> tuple[int]:
        value = values[position]
        known = remembered.get(type(value))
        if known is None:
            return hashed(values)
        found = known.get(value)
        if found is None:
            if len(known) >= _REMEMBERED:
                known.clear()
            known[value] = found = hashed(values)
        return found

    return remembering


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
