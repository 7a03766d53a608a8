"""The meaning of states and streams, as far as a log and its stores depend on it, and how two topologies differ in it.

Two topologies with equal meanings may continue each other's log, whatever their steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trident.fields import Fields, fields_of_struct, widens
from trident.graph import Graph, JoinWithinNode, PersistNode, WindowNode
from trident.operations.names import operation_name
from trident.planner.guarantees import spout_type_of
from trident.state.winners import FORMER, KEPT

Facts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Meaning:
    """Facts of each state that the topology writes, and of each stream that it reads; plain data.

    Of a state: its kind, key and value with their types, its aggregator or updater, over which fields, the window
    that it holds, and the streams that reach it. Of a stream: its spout, what that promises, its fields.
    """

    states: Facts
    streams: Facts


def meaning_of(graph: Graph) -> Meaning:
    """Return what the states and streams of a topology mean."""
    return Meaning(
        {node.state: _state(graph, node) for node in graph.nodes if isinstance(node, PersistNode)},
        {
            spout.id: {
                "spout": operation_name(spout.spout),
                "promise": spout_type_of(spout.spout).value,
                "fields": _typed(spout.fields),
            }
            for spout in graph.spouts()
        },
    )


_OF_A_FUNCTION, _OF_WIDER_VALUES = ("value", "by", "of"), ("value", "of")


def changes(before: Meaning, now: Meaning, migrating: Mapping[str, Any] | None = None) -> list[str]:
    """Return a line for each fact that changed; a new stream that reaches a state is not a change.

    Nor is a value that is migrated: `migrating` has what `migrate=` of a state says, by its name.
    """
    states = dict(now.states)
    for name, migrate in (migrating or {}).items():
        known = before.states.get(name, {})
        own = states[name]
        if callable(migrate):
            states[name] = {fact: own[fact] for fact in own if fact not in _OF_A_FUNCTION}
        elif known and all(widens(type_, _type_of(own)) for type_ in [_type_of(known), *_former(known)]):
            same = _OF_WIDER_VALUES if not _has_further(known, own) else _OF_A_FUNCTION
            states[name] = {fact: own[fact] for fact in own if fact not in same}
    return [*_changes("stream", before.streams, now.streams), *_changes("state", before.states, states)]


def _has_further(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a state of several aggregates has the same ones, in their order and under their names, and others behind."""
    names, further = (fields_of_struct(_type_of(facts)).names for facts in (before, now))
    return len(names) > 0 and further[: len(names)] == names and now["by"].startswith(f"{before['by']}, ")


def with_former(before: Meaning, now: Meaning, migrating: Mapping[str, Any], attempt: int) -> Meaning:
    """Return what a log is to know: also the former types of values, the last of them up to an attempt."""
    states = {}
    for name, facts in now.states.items():
        known = before.states.get(name, {})
        former = list(known.get(FORMER, ()))
        facts_that_count = _OF_A_FUNCTION if callable(migrating.get(name)) else ("value",)
        if name in migrating and known and any(known[fact] != facts[fact] for fact in facts_that_count):
            former.append([attempt, _type_of(known)])
        kept = {KEPT: known[KEPT]} if KEPT in known else {}
        states[name] = {**facts, **kept, **({FORMER: former} if former else {})}
    return Meaning(states, now.streams)


def with_kept_options(graph: Graph, known: Facts) -> Graph:
    """Return a topology whose states keep of their past what they did, where they do not say how much; see `StoreFacts.kept`.

    `known`: what the log says of states.
    """
    states = []
    for state in graph.states:
        kept, facts = known.get(state.name, {}).get(KEPT, {}), state.spec.facts
        if facts.with_kept is not None and not kept.keys() <= facts.kept.keys():
            state = replace(state, spec=replace(state.spec, factory=facts.with_kept(kept)))
        states.append(state)
    return replace(graph, states=tuple(states))


def _type_of(facts: Mapping[str, Any]) -> str:
    """Return the type of a state's value."""
    return str(facts["value"][0]).partition(": ")[2] if facts["value"] else ""


def _former(facts: Mapping[str, Any]) -> list[str]:
    return [type_ for _, type_ in facts.get(FORMER, ())]


def dropped(before: Meaning, now: Meaning) -> list[str]:
    """Return the states and streams that are no longer there."""
    return [
        f"{what} {name!r}"
        for what, old, new in (("stream", before.streams, now.streams), ("state", before.states, now.states))
        for name in old
        if name not in new
    ]


def _state(graph: Graph, node: PersistNode) -> dict[str, Any]:
    state = graph.state(node.state)
    kind = state.spec.kind
    facts: dict[str, Any] = {
        "kind": "custom" if kind is None else kind.value,
        "key": _typed(state.key_fields),
        "value": _typed(state.value),
        "by": _by(node),
        "of": _typed(node.inputs),
        "streams": sorted(spout.id for spout in graph.sources_of(node.id)),
    }
    if isinstance(node, WindowNode):
        member = node.member
        facts |= {"key": _typed(node.group), "value": _typed(node.value), "by": operation_name(member.aggregator)}
        facts["window"] = str(node.config)
    elif isinstance(node, JoinWithinNode):
        left, right = node.sides
        facts |= {"key": _typed(left.key), "value": [*_typed(left.fields), "with", *_typed(right.fields)]}
    return facts


def _by(node: PersistNode) -> str:
    if isinstance(node, JoinWithinNode):
        return str(node)
    return operation_name(node.updater if node.aggregation is None else node.aggregation.aggregator)


def _typed(fields: Fields) -> list[str]:
    return [f"{name}: {type_}" for name, type_ in zip(fields.names, fields.types, strict=True)]


def _changes(what: str, before: Facts, now: Facts) -> list[str]:
    return [
        f"{what} {name!r}: {fact} {_words(old[fact])} -> {_words(new[fact])}"
        for name, old in before.items()
        if (new := now.get(name)) is not None
        for fact in new
        if fact in old and _differs(fact, old[fact], new[fact])
    ]


def _differs(fact: str, old: Any, new: Any) -> bool:
    return not set(old) <= set(new) if fact == "streams" else bool(old != new)


def _words(fact: Any) -> str:
    return fact if isinstance(fact, str) else f"({', '.join(fact)})"
