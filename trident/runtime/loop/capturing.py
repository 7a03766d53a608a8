"""Capturing: which tuples a last try may leave out: none that an earlier attempt of the batch may have left in a state.

An opaque state takes back what a failed attempt wrote. A transactional one keeps it, and one that is neither, or does not keep
the attempts, keeps some. If such a state has the tuple already, its dead letter, put back, would count twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from trident.graph import PersistNode
from trident.planner import Fragment, Plan
from trident.runtime.loop.batch import Batch
from trident.runtime.steps.failures import Failure, StepFailed, failing_at

_OF_THE_ENGINE = ("spark", "processing", "commit")
"""The steps of failures after which tasks of the attempt may still run."""


class Capturing:
    """Knows what earlier attempts of a batch may have written, from the sentinels of the states; used by the loop's thread.

    `states`: by name, the writers of each partition.
    `lasting`: the states from which nothing takes back what a failed attempt wrote.
    `in_tasks`: the states that tasks commit.
    """

    def __init__(
        self, plan: Plan, states: Mapping[str, Sequence[Any]], lasting: Collection[str], in_tasks: Collection[str]
    ) -> None:
        self._plan, self._in_tasks = plan, frozenset(lasting).intersection(in_tasks)
        self._states = {name: states[name] for name in lasting}
        self._began = self._cut_off = 0

    def begins(self, txid: int) -> None:
        """Note that an attempt of a batch may write from now on."""
        self._began = txid

    def failed(self, batch: Batch, failure: Failure) -> None:
        """Note an attempt that failed; its tasks may write on until a later attempt fences them."""
        if failure.step in _OF_THE_ENGINE and batch.attempt.txid == self._began:
            self._cut_off = batch.attempt.txid

    def written(self, txid: int, committed: int) -> frozenset[str]:
        """Return the states that may keep something of earlier attempts of a batch; `StepFailed` if a store does not say.

        `committed`: the last committed batch. No attempt of a batch has written before the one before it is committed.
        """
        if txid != committed + 1:
            return frozenset()
        found = {name for name, partitions in self._states.items() if self._has_begun(name, partitions, txid)}
        return frozenset(found | (self._in_tasks if self._cut_off == txid else set()))

    def _has_begun(self, name: str, partitions: Sequence[Any], txid: int) -> bool:
        if not partitions[0].offers("read_sentinel"):
            return self._began == txid
        with failing_at(name):
            sentinels = [partition.read_sentinel() for partition in partitions]
        return any(sentinel is not None and sentinel.txid >= txid for sentinel in sentinels)

    def check(self, batch: Batch, captured: Iterable[Failure]) -> None:
        """Fail an attempt, for good, that left a tuple out which one of `Batch.written` may have."""
        for each in captured if batch.written else ():
            if each.left_out is None:
                continue
            if has := sorted(self._reached(each.left_out.entry, each.step) & batch.written):
                raise StepFailed(
                    Failure(
                        each.step,
                        each.row,
                        f"{each.cause}. It is not left out, because an earlier attempt of the batch, in which it may not have "
                        f"raised, has written to {', '.join(map(repr, has))}, which keeps that: put back, the tuple would "
                        "count twice. Fix the operation so that it raises at the same tuples each time, or not at all, and "
                        "start again",
                        retry=False,
                        details=each.details,
                    )
                )

    def _reached(self, entry: str, step: str) -> set[str]:
        """Return the states that the tuples which a step takes may reach."""
        fragment = self._plan.fragments.get(entry)
        known = fragment is not None and step in fragment.ids
        seen, ahead = set[str](), _targets(fragment, step if known else entry)
        while ahead:
            if (target := ahead.pop()) not in seen:
                seen.add(target)
                ahead += _targets(self._plan.fragments.get(target), target)
        return {node.state for node in self._plan.commits if isinstance(node, PersistNode) and node.id in seen}


def _targets(fragment: Fragment | None, step: str) -> list[str]:
    """Return the entries that tuples reach from a step of a fragment."""
    if fragment is None:
        return []
    reached = {step}
    for each in fragment.steps:
        if not reached.isdisjoint(each.sources):
            reached.add(each.id)
    return [sink.target for sink in fragment.sinks if sink.source in reached]
