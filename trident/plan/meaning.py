"""The meaning of states and streams, as far as a log and its stores depend on it, and how two topologies differ in it.

Two topologies with equal meanings may continue each other's log, whatever their steps. `evolution.py` says of a state that
differs whether what is stored can go on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

from trident.fields import fields_of_struct, widens
from trident.graph import Aggregation, Evolution, Graph, JoinWithinNode, PersistNode, WindowNode
from trident.operations.builtin import First, Last
from trident.operations.names import operation_name
from trident.operations.several import Collect, MultiAggregate, TopN
from trident.plan.evolution import (
    ALLOW,
    BESIDE,
    MEMBERS,
    Evolving,
    RefusedChange,
    current_names,
    evolution_of,
    named_type,
    names_exchanged,
    renaming,
)
from trident.plan.plan import spout_type_of
from trident.spout.interfaces import NamesItsSources
from trident.state.encoding.serializers import name_of_serializer
from trident.state.txid import CALLED, KEPT, LIMITS, MISSED, SERIALIZER, STORED_UNDER, TOTAL_KEY, renamed_facts

Facts = Mapping[str, Mapping[str, Any]]
READS = "reads"  # what a stream reads or has read, by name


@dataclass(frozen=True)
class Meaning:
    """Facts of each state that the topology writes, and of each stream that it reads; plain data.

    `rename`: by former names of states, fields, aggregates and keys what they are called now.
    `migrating`: the states with a `migrate=`.
    """

    states: Facts
    streams: Facts
    rename: Mapping[str, str] = field(default_factory=dict)
    migrating: tuple[str, ...] = ()

    @classmethod
    def of_log(cls, declared: Mapping[str, Any]) -> Meaning:
        """Return what a log has declared, or what `plain` gave."""
        rename, migrating = declared.get("rename", {}), tuple(declared.get("migrating", ()))
        return cls(declared.get("states", {}), declared.get("streams", {}), rename, migrating)

    def plain(self) -> dict[str, Any]:
        more = {"rename": dict(self.rename), "migrating": list(self.migrating)}
        return {"states": self.states, "streams": self.streams, **{name: one for name, one in more.items() if one}}


@dataclass(frozen=True)
class TopologyChanges:
    """How a topology differs from the one that wrote a log, which is to know it as `recorded`.

    `evolutions`: by name, the states of which former declarations have written a part.
    `taken`, `refused`: what changes, a line each; `added`, `dropped`: states and streams that are new, or no longer there.
    """

    recorded: Meaning
    evolutions: Mapping[str, Evolution] = field(default_factory=dict)
    taken: tuple[str, ...] = ()
    refused: tuple[RefusedChange, ...] = ()
    added: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)


def meaning_of(graph: Graph) -> Meaning:
    return Meaning(
        {node.state: _state(graph, node) for node in graph.nodes if isinstance(node, PersistNode)},
        {
            spout.id: {
                "spout": operation_name(spout.spout),
                "promise": spout_type_of(spout.spout).value,
                "fields": spout.fields.typed,
                **({READS: sorted(spout.spout.source_names)} if isinstance(spout.spout, NamesItsSources) else {}),
            }
            for spout in graph.spouts()
        },
        graph.rename,
        tuple(state.name for state in graph.states if state.migrate is not None),
    )


def compare(before: Meaning, now: Meaning, attempt: int = 0, first: int = 1) -> TopologyChanges:
    """Compare a topology, of which `attempt` and batch `first` can be the first ones, with what a log says."""
    renamed = _renamed_states(before.states, now)
    known_states = {
        renamed.get(name, name): renamed_facts(facts, name) if name in renamed else facts
        for name, facts in before.states.items()
    }
    before = replace(before, states=known_states)
    states, evolutions = dict(now.states), dict[str, Evolution]()
    taken, refused = [f"state {old!r} is called {new!r}" for old, new in renamed.items()], list[RefusedChange]()
    for name, known in before.streams.items():
        if name in now.streams:
            lines, differences = _stream_changes(name, known, now.streams[name])
            taken += lines
            refused += differences
    fields = {named_type(one)[0] for stream in before.streams.values() for one in stream["fields"]}
    for name, known in before.states.items():
        if name in states:
            evolving = Evolving(name, known, states[name], now.rename, name in now.migrating, fields)
            taken += evolving.taken
            refused += evolving.refused
            if MISSED in known:
                text = f"it was not declared from batch {known[MISSED]} until now, and its totals lack what was read"
                remedy = f"{BESIDE}. If {name!r} is to go on without them, start once with {ALLOW}"
                refused.append(RefusedChange(f"state {name!r}: {text}", remedy))
            states[name] = evolving.facts_to_record(attempt, first)
            if not evolving.refused and (evolution := evolution_of(states[name])) is not None:
                evolutions[name] = evolution
    refused += _read_by_others(before, now)
    refused += _under_other_names(before.states, now)
    refused += _taken_names(before.states, now)
    added, gone = _only_in(now, before), _only_in(before, now)
    recorded = Meaning(states, now.streams, now.rename, now.migrating)
    return TopologyChanges(recorded, evolutions, tuple(taken), tuple(refused), added, gone, renamed)


def with_kept_options(graph: Graph, known: Facts) -> Graph:
    """Return a topology whose states keep of their past what the log says, if they do not say: see `StoreFacts.kept`."""
    states = []
    for state in graph.states:
        kept, facts = known.get(state.name, {}).get(KEPT, {}), state.spec.facts
        if facts.with_kept is not None and not kept.keys() <= facts.kept.keys():
            state = replace(state, spec=replace(state.spec, factory=facts.with_kept(kept)))
        states.append(state)
    return replace(graph, states=tuple(states))


def _renamed_states(before: Facts, now: Meaning) -> dict[str, str]:
    came_back = {name: facts[CALLED] for name, facts in before.items() if facts.get(CALLED) in now.states}
    known = came_back | {old: new for old, new in now.rename.items() if old in before}
    found = {
        new: old for old, new in known.items() if old not in now.states and new in now.states and new not in before
    }
    return {old: new for new, old in found.items()}


def _read_by_others(before: Meaning, now: Meaning) -> list[RefusedChange]:
    """Return the streams that begin to read what another one has read for the same state, and does not read any more."""
    refused = []
    for name, other in permutations({**before.streams, **now.streams}, 2):
        known, own = {*before.streams.get(other, {}).get(READS, ())}, {*now.streams.get(name, {}).get(READS, ())}
        stays = {*now.streams.get(other, {}).get(READS, ()), *before.streams.get(name, {READS: ()}).get(READS, own)}
        shared = [part for one, by in ((own, known), (known, own)) for part in sorted(one) if _is_within(part, by)]
        moved = [part for part in shared if not _is_within(part, stays)]
        streams = {state: facts["streams"] for state, facts in before.states.items() if state in now.states}
        both = [state for state, fed in streams.items() if other in fed and name in now.states[state]["streams"]]
        if not (moved and both) or (name not in before.streams and other not in now.streams):  # a renamed stream
            continue
        remedy = (
            f"let {other!r} read it as before: {name!r} would read it from its start, and what is counted already would be "
            f"counted again. If it has only rows that are not counted yet, start once with {ALLOW}"
        )
        text = f"stream {name!r}: it reads {moved[0]!r} now, which stream {other!r} has read for state {both[0]!r}"
        refused.append(RefusedChange(text, remedy))
    return refused


def _is_within(part: str, names: Collection[str]) -> bool:
    return part in names or any(letter == "/" and part[:at] in names for at, letter in enumerate(part))


def _under_other_names(before: Facts, now: Meaning) -> list[RefusedChange]:
    """Return the states that are declared under another name: it would begin with nothing, and what is stored would be left."""
    return [
        RefusedChange(
            f"state {old!r}: its name is {new!r} now, and its totals would begin with nothing",
            f"{_other_name(old, known, new, own)}. To begin {new!r} with nothing, start once with {ALLOW}",
        )
        for old, known in before.items()
        for new, own in now.states.items()
        if old not in now.states and new not in before and _may_be_same(known, own, now.rename)
    ]


def _may_be_same(known: Mapping[str, Any], own: Mapping[str, Any], rename: Mapping[str, str]) -> bool:
    """Whether a state can be another one under a new name, and perhaps with more changes: it has one of its aggregates."""
    types = [named_type(one)[1] for one in known["key"]]
    key = list(zip(current_names(known["key"], own["key"], rename), types, strict=True))
    if key != [*map(named_type, own["key"])] or known.get("window") != own.get("window"):
        return False
    if MEMBERS in known and MEMBERS in own:
        is_there = [known[MEMBERS].get(name, [""])[0] == by for name, (by, *_) in own[MEMBERS].items()]
        calls = [[call for *call, _ in facts[MEMBERS].values()] for facts in (known, own)]
        return any(is_there) or any(call in calls[0] for call in calls[1])
    return MEMBERS not in known and MEMBERS not in own and known.get("by") == own.get("by")


def _other_name(old: str, known: Mapping[str, Any], new: str, own: Mapping[str, Any]) -> str:
    if MEMBERS in known or known["value"] == own["value"]:
        return renaming(old, new)
    return (
        f'if it is the same: declare its fields as they were ({", ".join(known["value"])}), with state_name="{old}", and give '
        "them other names in a step behind"
    )


def _taken_names(before: Facts, now: Meaning) -> list[RefusedChange]:
    """Return the states that would get a name by which the log, or the store of another one, knows something else."""
    there = [(old, new) for old, new in now.rename.items() if {old, new} <= before.keys() and new in now.states]
    exchanged = [
        RefusedChange(f"states {old!r} and {new!r}: each has the name of the other now", names_exchanged(old, new))
        for old, new in there
        if old < new and old in now.states and now.rename.get(new) == old
    ]
    in_use = [
        RefusedChange(
            f"state {old!r}: its name is {new!r} now, and the log has another state of that name",
            f"give {old!r} a new name; or leave it out of rename=, if {new!r} is to go on with what it had",
        )
        for old, new in there
        if old not in now.states
    ]
    in_store = [
        RefusedChange(
            f"state {name!r} is new, and {other!r}, which used to have this name, is kept in its store under it",
            f'give the new state an unused name, state_name="{name}-2"',
        )
        for other, facts in before.items()
        if (name := facts.get(STORED_UNDER)) in now.states and name not in before
    ]
    return exchanged + in_use + in_store


def _only_in(one: Meaning, other: Meaning) -> tuple[str, ...]:
    states = [f"state {name!r}" for name in one.states if name not in other.states]
    return (*states, *(f"stream {name!r}" for name in one.streams if name not in other.streams))


def _stream_changes(
    name: str, known: Mapping[str, Any], own: Mapping[str, Any]
) -> tuple[list[str], list[RefusedChange]]:
    what = f"stream {name!r}"
    for fact in ("spout", "promise"):
        if known[fact] != own[fact]:
            remedy = (
                "declare its source as it was. If the new one has only rows that are not counted yet, give it a name of its "
                f'own, new_stream("{name}-2", …), and start once with {ALLOW}: it is read from where it begins, and the totals '
                "go on"
            )
            return [], [RefusedChange(f"{what}: {fact} {known[fact]} -> {own[fact]}", remedy)]
    old, new = (dict(map(named_type, facts["fields"])) for facts in (known, own))
    narrower = [one for one in old if one in new and not widens(old[one], new[one])]
    if narrower:
        one = narrower[0]
        text = f"{what}: field {one!r} {old[one]} -> {new[one]}"
        remedy = f"give it another name, or the type {old[one]}, and convert it in a step behind"
        given = (
            f"if its source gives it so, as a followed state does, and the steps read it so, start once with {ALLOW}"
        )
        return [], [RefusedChange(text, f"{remedy}; {given}")]
    lines = [f"{what}: field {one!r} is new" for one in new if one not in old]
    lines += [f"{what}: field {one!r} is no longer there" for one in old if one not in new]
    lines += [f"{what}: field {one!r} {old[one]} -> {new[one]}" for one in old if new.get(one, old[one]) != old[one]]
    return lines, []


def _state(graph: Graph, node: PersistNode) -> dict[str, Any]:
    state, sources = graph.state(node.state), graph.sources_of(node.id)
    kind, key, value, of = state.spec.kind, state.key_fields.typed, state.value.typed, node.inputs.typed
    facts: dict[str, Any] = {
        "kind": "custom" if kind is None else kind.value,
        "key": key,
        "value": value,
        "by": _by(node),
        "of": of,
        "streams": sorted(spout.id for spout in sources),
    }
    if (serializer := state.spec.facts.serializer) is not None:
        facts[SERIALIZER] = name_of_serializer(serializer)
    if (
        not key
        and not isinstance(node, (WindowNode, JoinWithinNode))
        and (total := state.spec.facts.snapshot_key) is not None
    ):
        facts[TOTAL_KEY] = repr(total[0] if isinstance(total, tuple) and len(total) == 1 else total)
    if isinstance(node, WindowNode):
        facts |= {"key": node.group.typed, "value": node.value.typed, "by": operation_name(node.member.aggregator)}
        facts |= {"window": str(node.config), **_limits(node.member)}
    elif isinstance(node, JoinWithinNode):
        left, right = node.sides
        facts |= {"key": left.key.typed, "value": [*left.fields.typed, "with", *right.fields.typed]}
    elif node.aggregation is not None:
        facts |= {MEMBERS: _members(node.aggregation, of, value), **_limits(node.aggregation)}
    return facts


def _limits(aggregation: Aggregation) -> dict[str, dict[str, int]]:
    aggregator, limits = aggregation.aggregator, dict[str, int]()
    for part in aggregator.parts if isinstance(aggregator, MultiAggregate) else ():
        if isinstance(part.aggregator, (TopN, Collect)):
            limits[part.outputs.names[0]] = (
                part.aggregator.n if isinstance(part.aggregator, TopN) else part.aggregator.most
            )
    return {LIMITS: limits} if limits else {}


def _members(aggregation: Aggregation, of: list[str], value: list[str]) -> dict[str, list[Any]]:
    aggregator, output = aggregation.aggregator, aggregation.outputs
    if isinstance(aggregator, MultiAggregate):
        parts = aggregator.parts
        return {
            part.outputs.names[0]: [operation_name(part.aggregator), part.inputs.typed, part.outputs.typed]
            for part in parts
        }
    by = operation_name(aggregator)
    fields = fields_of_struct(output.types[0])
    if isinstance(aggregator, (First, Last)) and len(fields):
        of = []  # each field of the value is that of a tuple, whatever the others are
    return {named_type(one)[0]: [by, of, [one]] for one in (fields.typed if len(fields) else value)}


def _by(node: PersistNode) -> str:
    if isinstance(node, JoinWithinNode):
        return str(node)
    return operation_name(node.updater if node.aggregation is None else node.aggregation.aggregator)
