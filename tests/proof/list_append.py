"""A checker of list-append histories, written from the definition alone; and the form in which Elle reads them.

A transaction appends values to lists, each value once, and reads whole lists. A history is right if there is an order of its
transactions, which every process agrees with, in which each read sees what was appended before it: it is then serializable,
and no process sees time run backwards.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Txn:
    """One transaction.

    `appends`: keys and values, in their order.
    `reads`: by key, the whole list.
    """

    process: int
    appends: Sequence[tuple[str, int]] = ()
    reads: Mapping[str, Sequence[int]] = field(default_factory=dict)


def anomalies(history: Sequence[Txn]) -> list[str]:
    """Say what is wrong; the transactions of a process are in its order, and the last reads see everything."""
    found: list[str] = []
    writers: dict[tuple[str, int], int] = {}
    for number, txn in enumerate(history):
        for append in txn.appends:
            if append in writers:
                found.append(f"{append} is appended twice")
            writers[append] = number
    orders: dict[str, Sequence[int]] = defaultdict(tuple)
    for txn in history:
        for key, values in txn.reads.items():
            found += _bad_read(history, key, values, writers)
            shorter, longer = sorted((values, orders[key]), key=len)
            if list(longer[: len(shorter)]) != list(shorter):
                found.append(f"{key}: {list(shorter)[-5:]} and {list(longer)[-5:]} are no prefixes of one order")
            orders[key] = longer
    found += [f"{append} is lost" for append in writers if append[1] not in set(orders[append[0]])]
    return found or _cycles(history, orders, writers)


def _bad_read(
    history: Sequence[Txn], key: str, values: Sequence[int], writers: Mapping[tuple[str, int], int]
) -> Iterator[str]:
    """Say what no order could make right: values that come twice, that nobody appended, that are half of a transaction's."""
    if len(set(values)) < len(values):
        yield f"{key}: {list(values)[-5:]} has a value twice"
    for value in values:
        if (key, value) not in writers:
            yield f"{key}: {value} is read, and no committed transaction appends it"
    if values and (last := writers.get((key, values[-1]))) is not None:
        missing = [value for name, value in history[last].appends if name == key and value not in values]
        if missing:
            yield f"{key}: a read ends in the middle of a transaction, before {missing}"


def _cycles(
    history: Sequence[Txn], orders: Mapping[str, Sequence[int]], writers: Mapping[tuple[str, int], int]
) -> list[str]:
    """Return the transactions that no order can hold: what is left when those that depend on nothing else have gone."""
    after = _dependencies(history, orders, writers)
    before = dict.fromkeys(range(len(history)), 0)
    for other in itertools.chain.from_iterable(after.values()):
        before[other] += 1
    free = [number for number, count in before.items() if not count]
    while free:
        number = free.pop()
        del before[number]
        for other in after[number]:
            before[other] -= 1
            if not before[other]:
                free.append(other)
    return [
        f"transaction {number} is in a cycle, or behind one: {history[number]}"[:500] for number in list(before)[:5]
    ]


def _dependencies(
    history: Sequence[Txn], orders: Mapping[str, Sequence[int]], writers: Mapping[tuple[str, int], int]
) -> Mapping[int, set[int]]:
    """Return what must come after each transaction: later appends, reads that see it, appends that it does not see."""
    after: dict[int, set[int]] = {number: set() for number in range(len(history))}
    for key, values in orders.items():
        for one, other in itertools.pairwise(writers[key, value] for value in values):
            after[one].add(other)
    last: dict[int, int] = {}
    for number, txn in enumerate(history):
        if txn.process in last:
            after[last[txn.process]].add(number)
        last[txn.process] = number
        for key, values in txn.reads.items():
            order = orders[key]
            if values:
                after[writers[key, values[-1]]].add(number)
            if len(values) < len(order):
                after[number].add(writers[key, order[len(values)]])
    return {number: others - {number} for number, others in after.items()}


def edn(history: Sequence[Txn]) -> str:
    """Write a history as Elle reads it (`--model list-append`): an invocation and its end for each transaction."""
    lines = []
    for number, txn in enumerate(history):
        appends = [f'[:append "{key}" {value}]' for key, value in txn.appends]
        asked = [f'[:r "{key}" nil]' for key in txn.reads]
        seen = [f'[:r "{key}" [{" ".join(map(str, values))}]]' for key, values in txn.reads.items()]
        for at, (kind, ops) in enumerate((("invoke", appends + asked), ("ok", appends + seen))):
            lines.append(
                f"{{:index {2 * number + at}, :type :{kind}, :process {txn.process}, :f :txn, :value [{' '.join(ops)}]}}"
            )
    return "\n".join(lines) + "\n"
