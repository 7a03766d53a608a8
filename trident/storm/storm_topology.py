"""A topology as data: what `TopologyBuilder.create_topology` returns and every cluster runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trident.storm.groupings import Subscription
from trident.storm.interfaces import IBasicBolt, IRichBolt, IRichSpout
from trident.storm.streams import StreamSpec

ACKER = "__acker"


@dataclass(frozen=True)
class Component:
    """What spouts and bolts have in common.

    Attributes
    ----------
    executors
        How many threads run it.
    tasks
        How many instances it has; at least one for each executor.
    conf
        What `add_configuration` added for this component alone.
    """

    id: str
    executors: int
    tasks: int
    streams: Mapping[str, StreamSpec]
    conf: Mapping[str, Any]


@dataclass(frozen=True)
class SpoutSpec(Component):
    """A spout as it was set."""

    spout: IRichSpout


@dataclass(frozen=True)
class BoltSpec(Component):
    """A bolt as it was set, and what it reads."""

    bolt: IRichBolt | IBasicBolt
    inputs: tuple[Subscription, ...]


@dataclass(frozen=True)
class StormTopology:
    """Spouts and bolts by their ids, checked as a whole."""

    spouts: Mapping[str, SpoutSpec]
    bolts: Mapping[str, BoltSpec]

    @cached_property
    def components(self) -> Mapping[str, SpoutSpec | BoltSpec]:
        """All components, in the order in which they were set: spouts, then bolts."""
        return {**self.spouts, **self.bolts}

    def readers(self, component: str, stream: str) -> Iterator[tuple[BoltSpec, Subscription]]:
        """Iterate over the bolts that read a stream, each with its subscription."""
        for bolt in self.bolts.values():
            for each in bolt.inputs:
                if (each.component, each.stream) == (component, stream):
                    yield bolt, each

    @cached_property
    def on_cycles(self) -> frozenset[tuple[str, str]]:
        """The pairs (from, to) of components whose tuples may come back to where they came from.

        A full queue does not block senders along such a pair: each would wait for the other, for ever.
        """
        ahead = {component: self._reachable(component) for component in self.components}
        return frozenset(
            (each.component, bolt.id)
            for bolt in self.bolts.values()
            for each in bolt.inputs
            if each.component in ahead[bolt.id] | {bolt.id}
        )

    def _reachable(self, component: str) -> set[str]:
        components: set[str] = set()
        waiting = [component]
        while waiting:
            at = waiting.pop()
            new = {b.id for b in self.bolts.values() if any(s.component == at for s in b.inputs)} - components
            components |= new
            waiting += new
        return components
