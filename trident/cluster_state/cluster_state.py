"""`ClusterState`: a tree of small nodes that all processes of a cluster see; its paths, its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trident.errors import ClusterError, ClusterUnreachable
from trident.nodes.interface import Create, Delete, NodeEvent, Nodes, Put, Refusal, Step, StoredNode, Tell
from trident.nodes.polled_nodes import above

MAX_DATA_BYTES = 1_000_000  # ZooKeeper ends the connection of who sends more than 1,048,575 bytes, names included
_AT_ONCE = 200  # nodes that are deleted together


class ClusterState:
    """A tree of nodes with data, and one session. Threads may share it; a forked child may not use it.

    Paths begin with `/` and are below a root of whoever keeps them; `node_at` escapes what names cannot have. Data has at most
    1,000,000 bytes. `watch`: the callbacks are told once when what was returned may have changed. All methods raise
    `ClusterUnreachable` if it is not known whether a change was made: no server answers within the session's timeout, or an
    answer was lost, and others have changed the node since.

    `open_nodes`: opens what keeps them, which tells the events it is given a function for.
    """

    def __init__(self, open_nodes: Callable[[Tell], Nodes]) -> None:
        self._callbacks: list[Tell] = []
        self._nodes = open_nodes(self._tell)

    def register(self, callback: Tell) -> None:
        """Call `callback` with every event from now on; as `Tell` it must not wait, so it cannot use the state."""
        self._callbacks.append(callback)

    def set_ephemeral_node(self, path: str, data: bytes) -> None:
        """Set a node that vanishes with this session; if it is of another session, it becomes one of this session."""
        while True:
            node = self.get_node(path)
            if node is None:
                done = self.create_ephemeral_node(path, data)
            elif node.owner == self._nodes.id:
                done = self._change(Put(path, data), durable=False) is None
            else:
                new = Create(path, data, ephemeral=True)
                refusal = self._change(Delete(path, node.version), new, durable=False)
                if refusal == "not empty":
                    raise ClusterError(
                        f"the node {path!r} has nodes below it; it cannot become one that vanishes with a session"
                    )
                done = refusal is None
            if done:
                return

    def create_ephemeral_node(self, path: str, data: bytes) -> bool:
        """Create such a node; False, and nothing is done, if there is a node at `path`."""
        return self._create(Create(path, data, ephemeral=True), durable=False)

    def create_sequential(self, path: str, data: bytes) -> str:
        """Create a node whose name is `path` and a number of ten digits, which only grows; returns its path.

        The last number is the data of the node above; they begin again when that was deleted.
        """
        parent = above(path)
        while True:
            node = self.get_node(parent)
            if node is None:
                self.mkdirs(parent)
                continue
            used = [int(name[-10:]) for name in self.get_children(parent) if name[-10:].isdecimal()]
            number = max([-1, *used, *([int(node.data)] if node.data.isdigit() else [])]) + 1
            created = f"{path}{number:010}"
            match self._change(Put(parent, str(number).encode(), node.version), Create(created, data)):
                case None:
                    return created
                case "ephemeral":
                    raise _nothing_below(parent)

    def set_data(self, path: str, data: bytes) -> None:
        """Set a node's data; a node that does not exist is created, persistent, and the nodes above it."""
        put = Put(path, data)
        while self._change(put, durable=False) == "missing":
            if self._create(Create(path, data), durable=False):
                return

    def compare_and_set(self, path: str, data: bytes, version: int | None) -> bool:
        """Set a node's data if it has this version; None: create it if there is none. Returns whether it was done."""
        if version is None:
            return self.create_all({path: data})
        return (
            version >= 0 and self._change(Put(path, data, version)) is None
        )  # one below 0 is any version, to ZooKeeper

    def create_all(self, nodes: Mapping[str, bytes]) -> bool:
        """Create nodes, and those above them, all at once; False, and nothing is done, if one of them is there."""
        return self._create(*(Create(path, data) for path, data in nodes.items()))

    def delete_all(self, paths: Sequence[str]) -> None:
        """Delete nodes that have none below, all at once; nothing is done if one of them is not there any more."""
        self._change(*(Delete(path) for path in paths))

    def delete_node(self, path: str) -> None:
        """Delete a node and all below it; harmless if there is none."""
        node = Delete(path)
        while self._change(node) == "not empty":  # what is created below meanwhile is found the next time
            below, level = list[str](), [path]
            while level:
                names = zip(level, self._nodes.names(level), strict=True)
                level = [f"{parent}/{name}" for parent, each in names for name in each]
                below += level
            below.sort(reverse=True)  # those below others first
            for at in range(0, len(below), _AT_ONCE):
                self._change(*map(Delete, below[at : at + _AT_ONCE]))

    def mkdirs(self, path: str) -> None:
        """Create a node without data and those above it, where they are missing."""
        if self.get_node(path) is None:
            self.create_all({path: b""})

    def get_data(self, path: str, watch: bool = False) -> bytes | None:
        """Return a node's data, None if there is no node."""
        node = self.get_node(path, watch)
        return None if node is None else node.data

    def get_data_each(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return, for each path, what `get_data` returns, in as few requests as can be."""
        nodes = self._nodes.read(paths)
        return [None if node is None else node.data for node in nodes]

    def get_node(self, path: str, watch: bool = False) -> StoredNode | None:
        """Return a node's data, version and owner, None if there is no node."""
        return self._nodes.read([path], watch)[0]

    def get_children(self, path: str, watch: bool = False) -> list[str]:
        """Return the names of the nodes below, sorted; none if there is no node."""
        return self._nodes.names([path], watch)[0]

    def get_data_below(self, path: str) -> dict[str, bytes]:
        """Return the data of all nodes directly below, by name, in as few requests as can be."""
        return self.get_data_below_each([path])[path]

    def get_data_below_each(self, paths: Sequence[str]) -> dict[str, dict[str, bytes]]:
        """Return, for each path, what `get_data_below` returns, in as few requests as can be."""
        found: dict[str, dict[str, bytes]] = {path: {} for path in paths}
        names = zip(found, self._nodes.names(list(found)), strict=True)
        wanted = [(path, name) for path, below in names for name in below]
        nodes = self._nodes.read([f"{path.rstrip('/')}/{name}" for path, name in wanted])
        for (path, name), node in zip(wanted, nodes, strict=True):
            if node is not None:
                found[path][name] = node.data
        return found

    def close(self) -> None:
        """End the session: its ephemeral nodes vanish at once. Harmless when it is closed, and in a forked child."""
        if self._nodes.is_ours:
            self._nodes.close()

    def _tell(self, event: NodeEvent) -> None:
        for callback in list(self._callbacks):
            callback(event)

    def _change(self, *steps: Step, durable: bool = True) -> Refusal | None:
        for step in steps:
            if isinstance(step, Create | Put) and (size := len(step.data)) > MAX_DATA_BYTES:
                raise ClusterError(
                    f"{size:,} bytes are too many for the node {step.path!r}, which holds {MAX_DATA_BYTES:,}"
                )
        refusal = self._nodes.change(*steps, durable=durable)
        if refusal == "unknown":
            raise ClusterUnreachable(
                f"the answer to a change of the node {steps[-1].path!r} was lost, and others have changed it since: it is not "
                "known whether this change was made"
            )
        return refusal

    def _create(self, *nodes: Create, durable: bool = True) -> bool:
        while (refusal := self._change(*nodes, durable=durable)) == "missing":
            for each in nodes:
                self.mkdirs(above(each.path))
        if refusal == "ephemeral":
            raise _nothing_below(above(nodes[0].path))
        return refusal is None


def _nothing_below(path: str) -> ClusterError:
    return ClusterError(f"the node {path!r} vanishes with a session; it cannot have nodes below it")
