"""`ObjectNodes`: the nodes of a cluster in one object of an object store; sessions are those of `LeasedNodes`.

::

    <prefix>/nodes    the format, and by path what a node holds: data, version, session; as msgpack

A change replaces the object on condition that it is the one last seen, and is tried again if it is not. So each change, and
each heartbeat, writes all nodes: that is enough for some machines and some tens of topologies, and no server has to run for it.
A look asks for the object only if it is another one.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgpack

from trident.cluster_errors import ClusterError, ClusterUnreachable
from trident.nodes.interface import StoredNode, Tell
from trident.nodes.polled_nodes import LeasedNodes, NodeTable, T, Work, above, answer_time
from trident.servers.log_addresses import ObjectAddress
from trident.servers.object_client import ObjectClient, Tag
from trident.servers.patience import Patience

_POLL_S = 0.5
_NODES, _FORMAT, _VERSION = "nodes", "trident-nodes", 1
_PAUSE_S = 0.02


class _Tree(NamedTuple):
    """The object as it was last seen; without a tag: there is none. Implements `NodeTable`."""

    nodes: dict[str, StoredNode]
    tag: Tag | None

    def find(self, paths: Sequence[str]) -> dict[str, StoredNode]:
        return {path: self.nodes[path] for path in paths if path in self.nodes}

    def below(self, paths: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {path: [] for path in paths}
        for path in self.nodes:
            if path != "/" and (parent := above(path)) in found:
                found[parent].append(path.rpartition("/")[2])
        return found

    def owned(self, session: str) -> list[str]:
        return [path for path, node in self.nodes.items() if node.owner == session]


class ObjectNodes(LeasedNodes):
    """The nodes at an address; implements `Nodes`.

    `timeout_s`: how long this process may be out of touch before others end its session, and how long a request may wait.
    Raises `ClusterUnreachable`: the store did not answer within the timeout. `ClusterError`: it refuses, or has no conditions.
    """

    def __init__(self, address: ObjectAddress, timeout_s: float, tell: Tell) -> None:
        patience = Patience("the object store", address, ClusterUnreachable, timeout_s)
        self._client = ObjectClient(address, "the state of a cluster", patience, ClusterError, answer_time(timeout_s))
        self._client.check_conditions()
        self._tree = _Tree({"/": StoredNode(b"", 0)}, None)
        self._reading = threading.Lock()
        super().__init__(f"the state of the cluster at {address}", timeout_s, tell, _POLL_S)

    def _seen(self, look: Callable[[NodeTable], T]) -> T:
        return look(self._client.call(self._look_again))

    def _transact(self, work: Work, durable: bool = True) -> Any:
        since, pause = time.monotonic(), _PAUSE_S
        while True:
            now = self._client.call(self._look_again)
            changes = work(now)
            if isinstance(changes, str):
                return changes
            nodes = {path: node for path, node in {**now.nodes, **changes}.items() if node is not None}
            if self._client.swap(_NODES, msgpack.packb([_FORMAT, _VERSION, nodes]), now.tag) is not None:
                return None
            if time.monotonic() - since > self._timeout_s:
                raise ClusterUnreachable(f"{self.what} is changed by others all the time; nothing was done")
            time.sleep(random.uniform(0, pause))
            pause = min(2 * pause, 1.0)

    def _count(self) -> object:
        return self._look_again().tag

    def _look_again(self) -> _Tree:
        with self._reading:
            try:
                found = self._client.get_other(_NODES, self._tree.tag)
            except FileNotFoundError:
                if self._tree.tag is None:
                    return self._tree
                raise ClusterError(f"{self.what} was removed while it was open; start this process again") from None
            if found is not None:
                self._tree = _Tree(_of_bytes(found[0], self.what), found[1])
            return self._tree


def _of_bytes(data: bytes, what: str) -> dict[str, StoredNode]:
    try:
        name, version, *nodes = msgpack.unpackb(data)
        if name != _FORMAT:
            raise ValueError(f"{name!r} is not {_FORMAT!r}")
        if version != _VERSION:
            raise ClusterError(
                f"{what} is of format version {version}; this version of the software reads {_VERSION}. Use the version that "
                "made it"
            )
        return {path: StoredNode(*node) for path, node in nodes[0].items()}
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        raise ClusterError(f"{what} is damaged ({error}); restore the object {_NODES!r} from a backup") from error
