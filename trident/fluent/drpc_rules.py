"""What a DRPC stream may not do: meet another stream's tuples, or feed a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trident.errors import TopologyError
from trident.graph import DrpcNode, Node, SpoutNode

if TYPE_CHECKING:
    from trident.fluent.base import StreamBase

__all__ = ["check_apart", "refuse_state", "refuse_this_batch"]


def check_apart(call: str, streams: Sequence[StreamBase]) -> None:
    """Refuse to bring DRPC requests together with anything but themselves.

    Raises
    ------
    TopologyError
        As in Storm: "Cannot join DRPC stream with streams originating from other spouts".
    """
    origins = [(stream, source) for stream in streams for source in _sources(stream)]
    request = next(((stream, source) for stream, source in origins if isinstance(source, DrpcNode)), None)
    if request is None:
        return
    for stream, source in origins:
        if source.id != request[1].id:
            what = "DRPC function" if isinstance(source, DrpcNode) else "spout"
            raise TopologyError(
                f"{call}: cannot bring stream {request[0].get_name()!r} of DRPC function {_name(request[1])!r} together "
                f"with stream {stream.get_name()!r} of {what} {_name(source)!r}: a request is a batch of its own. Keep the "
                "other stream's tuples in a state, and look them up with state_query"
            )


def refuse_state(stream: StreamBase, call: str) -> None:
    """Refuse to write a state from DRPC requests: they have no txid, so nothing would make the writes exact."""
    for source in _sources(stream):
        if isinstance(source, DrpcNode):
            raise TopologyError(
                f"stream {stream.get_name()!r}: {call} cannot take the requests of DRPC function {source.function!r}; they "
                "only read. Feed states from a stream that has a spout"
            )


def refuse_this_batch(stream: StreamBase, state: str) -> None:
    """Refuse to show a DRPC request the values of its batch."""
    for source in _sources(stream):
        if isinstance(source, DrpcNode):
            raise TopologyError(
                f"stream {stream.get_name()!r}: a request of DRPC function {source.function!r} is in no batch that updates "
                f"state {state!r}; leave sees out, then it sees the newest committed batch"
            )


def _sources(stream: StreamBase) -> list[Node]:
    graph = stream._topology.graph()
    above = {stream._node.id, *graph.above(stream._node.id)}
    return [node for node in graph.nodes if node.id in above and isinstance(node, (SpoutNode, DrpcNode))]


def _name(source: Node) -> str:
    return source.function if isinstance(source, DrpcNode) else source.id
