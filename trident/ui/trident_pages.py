"""`TridentPages`: the pages of a running Trident topology."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trident.graph import JoinWithinNode, StateNode, WindowNode
from trident.observe.topology_status import TopologyStatus
from trident.runtime.reading.written_keys import parse_key
from trident.ui.cluster_pages import Page
from trident.ui.running_pages import RunningPages

if TYPE_CHECKING:
    from trident.runtime.running import RunningTopology

__all__ = ["TridentPages"]


class TridentPages(RunningPages):
    """`TopologyPages` of a `RunningTopology`.

    Parameters
    ----------
    running
        The topology.
    topology_id
        Its id in pages; its name if it has none.
    """

    def __init__(self, running: RunningTopology, topology_id: str | None = None) -> None:
        super().__init__(running, running.config.as_mapping(), topology_id)
        self._topology = running
        self._reading = threading.Lock()

    def status(self) -> TopologyStatus:
        """Return the topology as it is now."""
        return self._topology.pages.status()

    def batches(self) -> Sequence[Page]:
        """Return the last committed batches, oldest first."""
        return self._topology.recent_progress

    def lookup(self, state: str, key: Sequence[Any]) -> Page:
        """Return the value of a key at the last committed batch; texts become values of the key's types."""
        graph = self._topology.graph
        nodes = {node.name: node for node in graph.states}
        if state not in nodes:
            raise KeyError(f"topology {self._id!r} has no state {state!r}; it has {', '.join(nodes) or 'none'}")
        for node in graph.nodes:
            if isinstance(node, WindowNode | JoinWithinNode) and node.state == state:
                raise ValueError(f"state {state!r} keeps the tuples of open windows in a form of its own")
        typed = _typed(nodes[state], key)
        with self._reading:  # `txid` is that of the view's last read
            view = self._topology.state(state)
            value = view.multi_get([typed])[0] if typed else view.get()
            return {"state": state, "key": list(typed), "value": value, "found": value is not None, "txid": view.txid}


def _typed(node: StateNode, key: Sequence[Any]) -> tuple[Any, ...]:
    texts = [each if isinstance(each, str) else json.dumps(each, default=str) for each in key]
    fields = node.key_fields
    if fields and not texts:
        raise ValueError(f"state {node.name!r} is a map: name a key ({', '.join(fields.names)})")
    if not texts:
        return ()
    if len(node.value) and not fields:
        raise ValueError(f"state {node.name!r} holds a single value; name no key")
    if fields and len(texts) not in (1, len(fields)):
        raise ValueError(f"state {node.name!r}: expected {len(fields)} parts of a key ({', '.join(fields.names)})")
    return parse_key(texts[0] if len(texts) == 1 else json.dumps(texts), fields, node.name)
