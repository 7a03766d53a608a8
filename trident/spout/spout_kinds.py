"""Which kind of spout an object is; if it is none, what it lacks."""

from __future__ import annotations

from os import PathLike
from typing import Any

from trident.errors import TopologyError
from trident.fields import Fields
from trident.roles import missing
from trident.spout.interfaces import IBatchSpout, ITridentSpout
from trident.spout.partitioned import PartitionedSpout
from trident.spout.rich import IRichSpout, fields_of_rich_spout

AnySpout = ITridentSpout | PartitionedSpout | IBatchSpout | IRichSpout

_STRUCTURAL: tuple[type, ...] = (ITridentSpout, IBatchSpout, IRichSpout)


def is_partitioned(spout: Any) -> bool:
    """Whether it is a partitioned spout: those are known by their base class, for their methods are named as others' are."""
    return isinstance(spout, PartitionedSpout)


def fields_of_spout(stream: str, spout: Any) -> Fields:
    """Return the output fields of any spout; `TopologyError` that names what is missing if it is none."""
    if not isinstance(spout, type):
        if is_partitioned(spout) or isinstance(spout, (ITridentSpout, IBatchSpout)):
            fields: Fields = spout.get_output_fields()
            return fields
        if isinstance(spout, IRichSpout):
            return fields_of_rich_spout(spout)
    raise TopologyError(
        f"stream {stream!r} got {type(spout).__name__}, which is not a spout. {_lacks(spout)} (trident.spout)"
    )


def _lacks(spout: Any) -> str:
    """Say what is missing, of the interface that the object comes nearest to."""
    if isinstance(spout, type):
        return f"It is a class; give an object: {spout.__name__}(...)"
    lacks = {kind.__name__: list(missing(spout, kind)) for kind in _STRUCTURAL}
    has = {kind.__name__: len(list(missing(object(), kind))) - len(lacks[kind.__name__]) for kind in _STRUCTURAL}
    nearest = max(has, key=lambda name: (has[name], -len(lacks[name])))
    if isinstance(spout, (str, PathLike)):
        return f"It only names a place. TextFileSpout({str(spout)!r}) reads the files of a folder"
    if not has[nearest]:
        return "It has none of the methods of ITridentSpout, IBatchSpout or IRichSpout"
    said = f"For {nearest} it lacks {', '.join(lacks[nearest])}"
    if nearest == "ITridentSpout":
        said += "; a partitioned spout is a subclass of IPartitionedTridentSpout or IOpaquePartitionedTridentSpout"
    return said
