"""What must hold of a topology as a whole before it runs."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature

from trident.errors import TopologyError
from trident.setting_types import close_to
from trident.storm.groupings import Subscription
from trident.storm.interfaces import IBasicBolt, IRichBolt
from trident.storm.storm_topology import BoltSpec, StormTopology


def check_topology(topology: StormTopology) -> None:
    """Raise `TopologyError` for the first thing that is wrong; it names component, stream and field."""
    if not topology.spouts:
        raise TopologyError("the topology has no spout; add one with set_spout")
    for bolt in topology.bolts.values():
        if not bolt.inputs:
            raise TopologyError(
                f"bolt {bolt.id!r} reads nothing; subscribe it to a stream, e.g. .shuffle_grouping('…')"
            )
        for each in bolt.inputs:
            _check_input(topology, bolt, each)


def check_signatures(id: str, bolt: IRichBolt | IBasicBolt) -> None:
    """Raise `TopologyError` unless `prepare` and `execute` are both a rich bolt's, or both a basic bolt's."""
    basic = is_basic(bolt)
    if not _takes(bolt.prepare, 2 if basic else 3):
        kind, found = ("basic", "execute(tuple, collector)") if basic else ("rich", "execute(tuple)")
        wanted = "prepare(conf, context)" if basic else "prepare(conf, context, collector)"
        raise TopologyError(
            f"bolt {id!r}: {type(bolt).__name__} has {found}, so it is a {kind} bolt, which needs {wanted}; its prepare is "
            f"{signature(bolt.prepare)}"
        )


def is_basic(bolt: IRichBolt | IBasicBolt) -> bool:
    """Whether a bolt is a basic one: the two kinds differ in what `execute` and `prepare` take."""
    if _takes(bolt.execute, 1) and _takes(bolt.execute, 2):
        return not _takes(bolt.prepare, 3)
    return _takes(bolt.execute, 2)


def _takes(method: Callable[..., object], arguments: int) -> bool:
    try:
        signature(method).bind(*range(arguments))
    except TypeError:
        return False
    return True


def _check_input(topology: StormTopology, bolt: BoltSpec, each: Subscription) -> None:
    source = topology.components.get(each.component)
    if source is None:
        raise TopologyError(
            f"bolt {bolt.id!r} reads component {each.component!r}, which is not set"
            f"{close_to(each.component, topology.components, otherwise='')}"
        )
    stream = source.streams.get(each.stream)
    if stream is None:
        raise TopologyError(
            f"bolt {bolt.id!r} reads stream {each.stream!r} of component {each.component!r}, which declares "
            f"{sorted(source.streams) or 'none'}{close_to(each.stream, source.streams, otherwise='')}"
        )
    if stream.direct != (each.grouping.kind == "direct"):
        found, wanted = ("direct", "direct_grouping") if stream.direct else ("not direct", "another grouping")
        raise TopologyError(
            f"bolt {bolt.id!r} reads stream {each.stream!r} of component {each.component!r} with {each.grouping.kind} "
            f"grouping, but the stream is {found}; use {wanted}"
        )
    for field in each.grouping.fields:
        if field not in stream.fields:
            raise TopologyError(
                f"bolt {bolt.id!r} groups stream {each.stream!r} of component {each.component!r} by field {field!r}, but it "
                f"has {list(stream.fields)}{close_to(field, stream.fields, otherwise='')}"
            )
