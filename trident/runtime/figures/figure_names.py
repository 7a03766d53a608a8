"""Names what the passes over fragments count: which operation each number belongs to, and as what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from trident.graph import PersistNode
from trident.planner import Fragment
from trident.runtime.engine.step_figures import EACH, HEAD, NS, ROWS

__all__ = ["TOPOLOGY", "Key", "Meanings", "meanings_of"]

TOPOLOGY = ""
"""In place of an operation: the topology."""


class Key(NamedTuple):
    """What a total counts.

    Attributes
    ----------
    operation
        The id of its node, or `TOPOLOGY`.
    measure
        `emitted`, `executed`, `busy_ns`, `commit_ns` and others; or `sent`: rows on the edge to the operation `to`.
    """

    operation: str
    measure: str
    to: str = ""


Meanings = tuple[tuple[tuple[Key, int], ...], ...]
"""For each number of a fragment's figures: the totals that it is added to, or subtracted from (1, -1)."""


def meanings_of(fragment: Fragment, states: Mapping[str, PersistNode]) -> Meanings:
    """Return what the figures of a fragment mean; `states` are the nodes that update one, by id."""
    found: list[list[tuple[Key, int]]] = [[] for _ in range(HEAD + EACH * (len(fragment.steps) + len(fragment.sinks)))]
    entry = fragment.entry
    own = ["busy_ns", "commit_ns"] if entry in states else ["busy_ns"]
    found[ROWS] += _given(fragment, entry)
    found[NS] += [(Key(entry, measure), 1) for measure in own]
    for number, step in enumerate(fragment.steps):
        at = HEAD + EACH * number
        found[at] += _given(fragment, step.id)
        found[at + 1] += _took(step.id, entry, own)
    for number, sink in enumerate(fragment.sinks, len(fragment.steps)):
        at = HEAD + EACH * number
        found[at].append((Key(sink.source, "sent", sink.target), 1))
        found[at + 1] += _took(sink.target, entry, own)
    return tuple(map(tuple, found))


def _given(fragment: Fragment, source: str) -> Iterator[tuple[Key, int]]:
    """Iterate over what the rows mean that an entry or a step gives."""
    yield Key(source, "emitted"), 1
    for step in fragment.steps:
        for each in step.sources:
            if each == source:
                yield Key(step.id, "executed"), 1
                yield Key(source, "sent", step.id), 1
    for sink in fragment.sinks:
        if sink.source == source:
            yield Key(sink.target, "executed"), 1


def _took(operation: str, entry: str, own: list[str]) -> Iterator[tuple[Key, int]]:
    """Iterate over what the time of a step means: it is contained in that of the entry."""
    yield Key(operation, "busy_ns"), 1
    for measure in own:
        yield Key(entry, measure), -1
