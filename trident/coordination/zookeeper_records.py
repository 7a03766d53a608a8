"""Keeps the log of a topology in ZooKeeper, as a head and chunks (`head_records.py`): any machine can take a topology over.

::

    <path>/head                      the head
    <path>/chunks/…                  chunks; one that is too large for a node is several, `.{parts}.{number}`
    <path>/claim/{epoch:08d}-{id}    the claim of the writer: the only one
    <path>/alive/{epoch:08d}-{id}    ephemeral: the session of the writer is alive

A claim is taken by one transaction that replaces the head, removes the claim before and creates its own. An append is one
transaction too: it checks that the claim is there, creates the chunk if there is one, and sets the head if it has the version
that the writer knows. So an append of a driver that was replaced, or whose log was removed or set back, does nothing. A
transaction without an answer is sent again; if it is refused then, the head tells whether the first one was carried out.

The claim outlasts the session; the ephemeral node beside it shows whether the writer is alive. After a process was killed,
that node stays until the session ends, so a process of the same machine is looked for as well.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping, Sequence

from trident.coordination.head_records import CHUNKS, HEAD, HeadBody, HeadRecords
from trident.coordination.lock import SegmentName, holder_text
from trident.coordination.record_store import Head
from trident.errors import LogError
from trident.nodes.interface import Check, Create, Delete, NodeEvent, Put, Refusal, Step, StoredNode
from trident.nodes.zookeeper_nodes import ZooKeeperNodes
from trident.servers.log_addresses import ZooKeeperAddress
from trident.servers.patience import Patience

logger = logging.getLogger(__name__)

SESSION_S = 10.0
MOST_OLD = 100
"""Segments that the history has here at most: each has up to 1,000 records, all in the memory of every server."""
_CLAIM, _ALIVE, _FORMER = "/claim", "/alive", "/segments"
_AT_ONCE = 200  # nodes that are removed together
_PARTS = re.compile(r".*\.(\d+)")


class ZooKeeperRecords(HeadRecords):
    """The log at an address.

    `part_bytes`: how much of a chunk a node holds. A request to ZooKeeper has at most 1 MiB (`jute.maxbuffer`), head and all.
    """

    head_bytes = 4 << 10  # the names of a segment's chunks take as much again: more or less, and an append writes more
    part_bytes = 900_000

    def __init__(self, address: ZooKeeperAddress) -> None:
        super().__init__(address, Patience("ZooKeeper", address))
        self._own = ""  # the name of this writer's claim
        self._has_warned = False
        self._has_fired = threading.Event()  # what was watched has changed
        what = f"the log at {address}"
        self._nodes = ZooKeeperNodes(address, what, SESSION_S, self.patience, LogError, self._on_event)

    def look(self) -> Head | None:
        head = super().look()
        if head is None and self._node(_FORMER) is not None:
            raise LogError(
                f"the transaction log {self._address} is of another format version; use the version that wrote it"
            )
        return head

    def has(self, claim: Head) -> bool:
        return self._node(f"{_CLAIM}/{claim.name}") is not None

    def is_held(self, claim: Head, wait: bool = False) -> bool:
        self._has_fired.clear()
        if self._nodes.read([f"{_ALIVE}/{claim.name}"], watch=wait) == [None]:
            return False
        if not wait:
            return True
        logger.warning(
            "transaction log %s was written by %s; waiting up to %g seconds for the end of its session",
            self._address, holder_text(claim.about, claim.epoch), SESSION_S,
        )  # fmt: skip
        return not self._has_fired.wait(SESSION_S + 1)

    def release(self, claim: Head) -> None:
        """Let the ephemeral node go with the session, which is closed next."""
        self._own = ""

    def sweep(self, keep: SegmentName) -> None:
        old = sorted({segment for segment, _ in self._listed})[:-1]  # without the one that has just begun
        if len(old) > MOST_OLD and keep < old[-MOST_OLD]:
            keep = old[-MOST_OLD]
            self._warn_of_size()
        super().sweep(keep)

    def close(self) -> None:
        self._nodes.close()

    def _prepare(self) -> None:
        for path in (_CLAIM, _ALIVE, f"/{CHUNKS}"):
            self._nodes.make(path)

    def _get_each(self, names: Sequence[str]) -> list[StoredNode | None]:
        paths = [self._paths(name) for name in names]
        found = iter(self._nodes.read([path for some in paths for path in some], sync=True))
        return [_join_parts([next(found) for _ in some]) for some in paths]

    def _replace(self, body: HeadBody, chunks: Mapping[str, bytes]) -> int | None:
        nodes = [node for name, data in chunks.items() for node in self._cut(name, data)]
        for node in nodes[:-1]:  # of a chunk that is too large to go with the head
            if self._write(node) is not None:
                return None
        refusal = self._write(*nodes[-1:], Put(f"/{HEAD}", body.to_bytes(), body.tag))
        return body.tag + 1 if refusal is None else None

    def _replace_claim(self, body: HeadBody, before: HeadBody) -> int | None:
        tag: int | None = body.tag
        head, data, own, old = f"/{HEAD}", body.to_bytes(), body.name, f"{_CLAIM}/{before.name}"
        steps: list[Step] = [Create(f"{_CLAIM}/{own}"), Create(f"{_ALIVE}/{own}", ephemeral=True)]
        if tag is not None and self._node(old) is not None:
            steps.append(Delete(old))
        steps.append(Create(head, data) if tag is None else Put(head, data, tag))
        if self._nodes.change(*steps) is not None:
            return None
        self._own = own
        self._show_life()  # if an earlier try has created the ephemeral node, in a session that is over
        return 0 if tag is None else tag + 1

    def _put(self, name: str, data: bytes) -> None:
        self._write(Create(f"/{name}", data))  # refused: it is there, or the claim is not, which the next append finds

    def _names(self) -> list[str]:
        return [f"{CHUNKS}/{name}" for name in self._nodes.names([f"/{CHUNKS}"])[0]]

    def _remove(self, names: Sequence[str]) -> None:
        for at in range(0, len(names), _AT_ONCE):
            # Refused: a driver that was replaced removes nothing more; or an earlier try, or another driver, has removed it.
            if self._write(*(Delete(f"/{name}") for name in names[at : at + _AT_ONCE])) == "not empty":
                raise LogError(f"ZooKeeper refuses to remove old records of {self._address}: a node has nodes below it")

    def _chunk_name(self, segment: SegmentName, first: int, size: int) -> str:
        name, parts = super()._chunk_name(segment, first, size), -(-size // self.part_bytes)
        return name if parts == 1 else f"{name}.{parts}"

    def _paths(self, name: str) -> list[str]:
        """Return the paths of the nodes of a chunk, or of the head."""
        parts = _PARTS.fullmatch(name)
        return [f"/{name}"] if parts is None else [f"/{name}.{number}" for number in range(int(parts[1]))]

    def _cut(self, name: str, data: bytes) -> list[Create]:
        step = self.part_bytes
        return [Create(path, data[at * step : (at + 1) * step]) for at, path in enumerate(self._paths(name))]

    def _write(self, *steps: Step) -> Refusal | None:
        """Carry out steps if this writer's claim is there."""
        return self._nodes.change(Check(f"{_CLAIM}/{self._own}"), *steps)

    def _on_event(self, event: NodeEvent) -> None:
        if event.kind == "changed":
            self._has_fired.set()
        elif event.kind != "suspended":
            self._nodes.spawn(self._show_life)  # a connection again, perhaps in another session

    def _show_life(self) -> None:
        """Create the ephemeral node again if it went with its session, unless another driver has claimed the log."""
        own = self._own
        if not own:
            return
        try:
            alive = f"{_ALIVE}/{own}"
            (found,) = self._nodes.read([alive])
            if self._own == own and (found is None or found.owner != self._nodes.id):
                # One of a session before, whose end is not known everywhere, is deleted.
                self._write(*([] if found is None else [Delete(alive)]), Create(alive, ephemeral=True))
        except LogError as error:  # the next connection tries again
            logger.debug("cannot say that the writer of %s is alive: %s", self._address, error)

    def _node(self, path: str) -> StoredNode | None:
        return self._nodes.read([path], sync=True)[0]

    def _warn_of_size(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "transaction log %s: the oldest part of its history is removed, although history= would keep it: "
                "ZooKeeper keeps every record in memory, so a log there has %d segments of up to 1,000. Ask for less, "
                "or keep the log in files, PostgreSQL or an object store",
                self._address, MOST_OLD,
            )  # fmt: skip


def _join_parts(parts: Sequence[StoredNode | None]) -> StoredNode | None:
    """Return what nodes hold together, with the version of the first; None if one is missing."""
    found = [each for each in parts if each is not None]
    return StoredNode(b"".join(each.data for each in found), found[0].version) if len(found) == len(parts) else None
