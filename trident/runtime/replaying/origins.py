"""`why`: the batches, source positions and rows that made one value of a state."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trident.config import Config
from trident.coordination.records import CommitRecord
from trident.errors import UnsupportedOperation, WrongKeyError
from trident.graph import Graph, JoinWithinNode, PersistNode, WindowNode
from trident.runtime.replaying.batch_replay import Replay
from trident.runtime.replaying.replay_graph import TOTAL, KeyWatch
from trident.state.encoding.equal_keys import declared_keys, keys_of_list
from trident.state.interfaces import Key


@dataclass(frozen=True)
class ValueOrigin:
    """What one batch did to a value.

    `batch`: its record, as of `trident.read_history`: `txid`, `attempt`, `at_ms`, and in `spouts` what each source gave it.
    `count`: how many rows in front of the state have the key; None: a user's updater chose the key, and does not say why.
    `rows`: the first of them.
    `partial`: what they come to, which was combined with the value; None: a reducer or an updater made the new value.
    `before`, `after`: the value; None: absent.
    """

    batch: CommitRecord
    count: int | None
    rows: Sequence[Mapping[str, Any]]
    partial: Any
    before: Any
    after: Any


def origins_of(
    graph: Graph, name: str, key: Any, config: Config, last: int | None = None, rows: int = 100
) -> list[ValueOrigin]:
    """Return the batches that made a value, in order; see `trident.why`."""
    writer = _writer(graph, name)
    watch = KeyWatch(name, *_watched(graph, writer, key), most=rows)
    origins: deque[ValueOrigin] = deque(maxlen=last)
    with Replay(graph, config, watch) as replay:
        if name in replay.left_out:
            raise UnsupportedOperation(f"explain state {name!r}: {replay.left_out[name]}")
        before = None
        for batch in replay.until():
            (stored,) = replay.stored(name, [watch.key])
            if stored is not None and stored.txid == batch.txid:
                count = None if writer.aggregation is None else watch.count
                (partial,) = watch.partials or [None]
                origins.append(ValueOrigin(batch, count, watch.rows, partial, before, stored.curr))
            before = None if stored is None else stored.curr
            watch.begin()
    return list(origins)


def _writer(graph: Graph, name: str) -> PersistNode:
    """Return the node that writes a state."""
    if graph.state(name).static:
        raise UnsupportedOperation(f"explain state {name!r}: no batch of topology {graph.name!r} writes it")
    (writer,) = (each for each in graph.nodes if isinstance(each, PersistNode) and each.state == name)
    if isinstance(writer, WindowNode | JoinWithinNode):
        raise UnsupportedOperation(
            f"explain state {name!r}: it keeps tuples of open windows, or of a join, in a form of its own. Ask for a value of "
            "the state behind it"
        )
    return writer


def _watched(graph: Graph, writer: PersistNode, key: Any) -> tuple[Key, Sequence[str]]:
    """Return the key as the state has it, and the fields of a row that are the key; None asks for a single value."""
    node, aggregation = graph.state(writer.state), writer.aggregation
    if aggregation is not None and not aggregation.grouped:
        if key is not None:
            raise WrongKeyError(f"explain key {key!r} of state {node.name!r}: it is a single value; name no key")
        return TOTAL, ()
    if key is None:
        names = ", ".join(node.key_fields.names) or "chosen by its updater"
        raise WrongKeyError(f"explain state {node.name!r}: it is a map; name the key ({names}) of the value")
    given = keys_of_list([key], node.name)
    (wanted,) = declared_keys(given, node.key_fields, node.name) if len(node.key_fields) else given
    if wanted is None:
        raise WrongKeyError(f"explain key {key!r} of state {node.name!r}: no key can be this one ({node.key_fields})")
    return wanted, () if aggregation is None else aggregation.group.names
