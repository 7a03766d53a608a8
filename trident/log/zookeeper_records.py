"""Keeps the log of a topology in ZooKeeper (`record_store.py`): any machine can take a topology over.

Beside head and chunks are `claim/{name}`, of the writer alone, and `alive/{name}`, ephemeral: its session. A claim is one
transaction, which removes the claim before, and so is an append: it checks the claim, as in a log that was removed and begun
again the version of the head comes twice. The claim outlasts the session; `alive` is there for a while after a kill.
"""

import logging
import re
import threading
from collections.abc import Sequence

from trident.errors import LogError
from trident.log.lock import SegmentName, holder_text
from trident.log.log_state import CommittedUpTo
from trident.log.record_store import CHUNKS, HEAD, Chunks, Head, LaterWrites, RecordStore
from trident.nodes.interface import Check, Create, Delete, NodeEvent, Put, Refusal, Step, StoredNode
from trident.nodes.zookeeper_nodes import ZooKeeperNodes
from trident.servers.log_addresses import ZooKeeperAddress
from trident.servers.patience import Patience, by_count

logger = logging.getLogger(__name__)

SESSION_S = 10.0
MOST_OLD = 100  # segments of the history: each has up to 1,000 records, all in the memory of every server
_CLAIM, _ALIVE = "/claim", "/alive"
_AT_ONCE = 200  # nodes that are removed together
_PARTS = re.compile(r".*\.(\d+)")


class ZooKeeperRecords(RecordStore):
    """The log at an address; a request there has at most 1 MiB (`jute.maxbuffer`), head and all."""

    head_bytes = 4 << 10  # the names of a segment's chunks take as much again: more or less, and an append writes more
    part_bytes = 900_000

    def __init__(self, address: ZooKeeperAddress) -> None:
        self.patience, self.place = Patience("ZooKeeper", address), str(address)
        self._own = ""  # the name of this writer's claim
        self._has_warned = False
        self._has_fired = threading.Event()  # what was watched has changed
        what = f"the log at {address}"
        self._nodes = ZooKeeperNodes(address, what, SESSION_S, self.patience, LogError, self._on_event)

    def get(self, names: Sequence[str]) -> list[StoredNode | None]:
        paths = [_paths(name) for name in names]
        found = iter(self._nodes.read([path for some in paths for path in some], sync=True))
        return [_join_parts([next(found) for _ in some]) for some in paths]

    def claim(self, head: Head, before: Head) -> int | None:
        for path in (_CLAIM, _ALIVE, f"/{CHUNKS}"):
            self._nodes.make(path)
        tag: int | None = head.tag
        old = f"{_CLAIM}/{before.name}"
        steps: list[Step] = [Create(f"{_CLAIM}/{head.name}"), Create(f"{_ALIVE}/{head.name}", ephemeral=True)]
        if tag is not None and self._nodes.read([old], sync=True) != [None]:
            steps.append(Delete(old))
        steps.append(Create(f"/{HEAD}", head.data) if tag is None else Put(f"/{HEAD}", head.data, tag))
        if self._nodes.change(*steps) is not None:
            return None
        self._own = head.name
        self._show_life()  # if an earlier try has created the ephemeral node, in a session that is over
        return 0 if tag is None else tag + 1

    def replace(self, head: Head, chunks: Chunks, committed: CommittedUpTo, beside: LaterWrites = ()) -> int | None:
        nodes = [
            Create(path, data[at * self.part_bytes : (at + 1) * self.part_bytes])
            for name, data in chunks.items()
            for at, path in enumerate(_paths(name))
        ]
        for node in nodes[:-1]:  # what is too much to go with the head
            if self._write(node) not in (None, "exists"):  # as another driver has kept it, see `StoredLog`
                return None
        refusal = self._write(*nodes[-1:], Put(f"/{HEAD}", head.data, head.tag))
        return head.tag + 1 if refusal is None else None

    def names(self, most: int | None = None) -> list[str]:
        return [f"{CHUNKS}/{name}" for name in self._nodes.names([f"/{CHUNKS}"])[0]]

    def remove(self, names: Sequence[str]) -> None:
        for some in by_count(names, _AT_ONCE):
            # Refused: a driver that was replaced removes nothing more; or an earlier try, or another driver, has removed it.
            if self._write(*(Delete(f"/{name}") for name in some)) == "not empty":
                raise LogError(f"ZooKeeper refuses to remove old records of {self.place}: a node has nodes below it")

    def is_held(self, head: Head, wait: bool) -> bool:
        self._has_fired.clear()
        if self._nodes.read([f"{_ALIVE}/{head.name}"], watch=wait) == [None]:
            return False
        if not wait:
            return True
        logger.warning(
            "transaction log %s was written by %s; waiting up to %g seconds for the end of its session",
            self.place, holder_text(head.about, head.epoch), SESSION_S,
        )  # fmt: skip
        return not self._has_fired.wait(SESSION_S + 1)

    def release(self, head: Head) -> None:
        """Let the ephemeral node go with the session, which is closed next."""
        self._own = ""

    def first_kept(self, old: Sequence[SegmentName], keep: SegmentName) -> SegmentName:
        if len(old) <= MOST_OLD or keep >= old[-MOST_OLD]:
            return keep
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "transaction log %s: the oldest part of its history is removed, although history= would keep it: "
                "ZooKeeper keeps every record in memory, so a log there has %d segments of up to 1,000. Ask for less, "
                "or keep the log in files, PostgreSQL or an object store",
                self.place, MOST_OLD,
            )  # fmt: skip
        return old[-MOST_OLD]

    def close(self) -> None:
        self._nodes.close()

    def _write(self, *steps: Step) -> Refusal | None:
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
            logger.debug("cannot say that the writer of %s is alive: %s", self.place, error)


def _paths(name: str) -> list[str]:
    parts = _PARTS.fullmatch(name)
    return [f"/{name}"] if parts is None else [f"/{name}.{number}" for number in range(int(parts[1]))]


def _join_parts(parts: Sequence[StoredNode | None]) -> StoredNode | None:
    found = [each for each in parts if each is not None]
    return StoredNode(b"".join(each.data for each in found), found[0].version) if len(found) == len(parts) else None
