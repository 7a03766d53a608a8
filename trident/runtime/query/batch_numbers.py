"""Whether the batch that a query or a job gives is the next one of the log (rules F1, F2): functions of values.

Spark's checkpoint says how far the source was read, the log says how far the states are. A definition of a query's batch is
plain data: `batch` (Spark's number), `base` (batch b is txid b + 1 - base), and what is known of the query: `query` and `run`
(its ids), and `planned_ms`, when Spark planned the batch. A batch that Spark repeats keeps that time, another batch of the same
number has another one.

The definition of a batch that a job has named has its `name`, and of all names so far the greatest, which are few: `names`, in
order. Whatever was passed over is not greater than `floor`. So of a name above it is known whether it was written, however
often a job is repeated, and of one below it is known that it is not known.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trident.errors import CheckpointMismatchError, SpoutError

_BEGIN_AGAIN = (
    'To count everything again, give a new checkpoint, a new log_dir and, once, state_recovery="discard_totals"'
)

NAMES_KEPT = 400


@dataclass(frozen=True)
class QueryBatch:
    """Which batch a query gives; None where the session does not tell."""

    batch: int
    query: str | None = None
    run: str | None = None
    planned_ms: int | None = None

    def is_of(self, definition: Mapping[str, Any]) -> bool:
        return _agree(self.query, definition["query"])

    def is_same(self, definition: Mapping[str, Any]) -> bool:
        """Whether a definition is of this very batch, as far as both sides are known."""
        return (
            self.batch == definition["batch"]
            and self.is_of(definition)
            and _agree(self.planned_ms, definition["planned_ms"])
        )


def definition_of(
    found: QueryBatch,
    txid: int,
    last: Mapping[str, Any] | None,
    begun: Mapping[str, Any] | None = None,
    adopts: bool = False,
) -> dict[str, Any] | None:
    """Return the definition of the batch that a query gives; None if the log has it already.

    `txid`: the last batch of the log.
    `last`: the definition of the last batch that a query has given; None: there is none.
    `begun`: the definition of the next batch, if it has to be repeated.
    `adopts`: whether to take the batch in any case.
    Raises `CheckpointMismatchError`: log and checkpoint do not belong together.
    """
    if last is not None and "name" in last:
        raise CheckpointMismatchError(
            f"a query gives batch {found.batch}, but this log has batches that were written by name, the last one "
            f"{last['name']!r}: give foreachBatch a function, or a log_dir, of its own"
        )
    if last is not None and found.is_same(last):
        return None
    problem = _problem(found, txid, last)
    if problem is not None and not adopts:
        raise CheckpointMismatchError(f"{problem}. {_BEGIN_AGAIN}")
    if begun is not None and not found.is_same(begun):
        raise CheckpointMismatchError(
            f"a query gives batch {found.batch} (query {found.query}), but the log has begun batch {begun['batch']} of query "
            f"{begun['query']}, and transactional states may have a part of it: start the query with the checkpoint that has "
            f"this batch. {_BEGIN_AGAIN}"
        )
    known = {"query": found.query, "run": found.run, "planned_ms": found.planned_ms}
    return dict(begun) if begun is not None else {"batch": found.batch, "base": found.batch - txid, **known}


def _problem(found: QueryBatch, txid: int, last: Mapping[str, Any] | None) -> str | None:
    """Say why this is not the next batch, and which of the two sides to restore; None if it is."""
    if last is None:
        if found.batch == 0:
            return None
        return (
            f"Spark gives batch {found.batch} of query {found.query}, but the log has no batch of any query: the log was lost, "
            "or the checkpoint is that of another program. Restore the log, or name the folder where it is (log_dir)"
        )
    ends = f"the log ends with batch {last['batch']} of query {last['query']} (txid {txid})"
    gives = f"Spark gives batch {found.batch}"
    if not found.is_of(last):
        return (
            f"{gives} of query {found.query}, but {ends}: the checkpoint was deleted, or two queries use one function or one "
            "log. Restore the checkpoint that belongs to the log; give each query a function and a log_dir of its own"
        )
    if found.batch == last["batch"]:
        return (
            f"{gives}, planned at {found.planned_ms} ms, but the batch {last['batch']} of the log was planned at "
            f"{last['planned_ms']} ms: the checkpoint was restored from an older copy, and the same number means other rows "
            "now. Restore the checkpoint that belongs to the log"
        )
    if found.batch < last["batch"]:
        return (
            f"{gives}, but {ends}: the checkpoint was deleted or restored from an older copy, and the same numbers mean other "
            "rows now. Restore the checkpoint that belongs to the log"
        )
    if found.batch > last["batch"] + 1:
        return (
            f"{gives}, but {ends}: the log is older than the checkpoint, or another function was given the batches between. "
            "Restore the log that belongs to the checkpoint, and the states with it"
        )
    return None


def _agree(one: Any, other: Any) -> bool:
    return one is None or other is None or one == other


def definition_of_name(
    name: str, last: Mapping[str, Any] | None, begun: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Return the definition of a named batch; None if it was written already.

    `last`: the definition of the last batch; None: there is none.
    `begun`: the definition of a batch that was begun and has to be finished first, if there is one.
    Raises `SpoutError`: the name is older than all that the log remembers, so it cannot be known whether it was written.
    Raises `CheckpointMismatchError`: the batches of this log come from a query.
    """
    if last is not None and "name" not in last:
        raise CheckpointMismatchError(
            f"write(batch={name!r}): the batches of this log come from a query, the last one is {last['batch']}: give jobs "
            "that name their batches a function, or a log_dir, of their own"
        )
    names: list[str] = [] if last is None else list(last["names"])
    floor = None if last is None else last["floor"]
    if name in names or name == floor:
        return None
    if floor is not None and name <= floor:
        raise SpoutError(
            f"write(batch={name!r}): the log remembers the {len(names)} greatest names, those after {floor!r}, and this one is "
            "not after it: whether it was written cannot be known. Name batches in increasing order, as by their date"
        )
    if begun is not None and begun["name"] != name:
        raise SpoutError(
            f"write(batch={name!r}): the batch {begun['name']!r} was begun and is not finished, and transactional states may "
            f"have a part of it: write batch {begun['name']!r} first"
        )
    insort(names, name)
    if len(names) > NAMES_KEPT:
        floor = names.pop(0)
    return {"name": name, "names": names, "floor": floor}
