"""`Nodes`: a tree of small nodes that several processes see and change, whoever keeps it."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

Refusal = Literal["missing", "exists", "version", "not empty", "ephemeral", "unknown"]
"""Why a change was not made; `unknown`: whether it was, because its answer was lost, and others have changed the node since.

`missing`: there is no such node, or none above the one to be created. `version`: it has another one.
`not empty`: nodes are below the one to be deleted. `ephemeral`: the node above vanishes with a session: none can be below it.
"""


class StoredNode(NamedTuple):
    """What a node holds."""

    data: bytes
    version: Any  # how often it was set: 0 when it was created; in an object store what tells this content from others
    owner: object = None  # the id of the session whose end is its end; None: it stays


class Create(NamedTuple):
    """Creates a node, below one that is there; `ephemeral`: it vanishes with this session."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


class Put(NamedTuple):
    """Sets a node's data if it has this version; None: any."""

    path: str
    data: bytes
    version: int | None = None


class Delete(NamedTuple):
    """Deletes a node that has none below it if it has this version; None: any."""

    path: str
    version: int | None = None


class Check(NamedTuple):
    """Changes nothing; refused if there is no such node."""

    path: str


Step = Create | Put | Delete | Check


EventKind = Literal["changed", "suspended", "connected", "expired"]
"""What a watch, or the session, reports.

`changed`: of a node that is watched: it, or the names below it, may be others than were read.
`suspended`: no server answers; what is read may be old. `connected`: it answers again, the session and its ephemeral nodes are
still there. `expired`: it answers again, but the session is over: its ephemeral nodes are gone, and another session has begun.
Watches may be over after each of the three, and changes missed: a watcher has to read again.
"""


class NodeEvent(NamedTuple):
    """One event: of a node, or of the session, which has the path `""`."""

    kind: EventKind
    path: str


Tell = Callable[[NodeEvent], None]  # is told events, in a thread of its own or that of the session: it must not wait


class Nodes(Protocol):
    """The tree, and one session. Paths begin with `/`, a node that is always there. Threads may share it, no forked child."""

    @property
    def id(self) -> object:
        """The id of the session, which is the owner of its ephemeral nodes."""

    @property
    def is_ours(self) -> bool:
        """Whether this process opened them, and not one that it was forked from."""

    def read(self, paths: Sequence[str], watch: bool = False) -> list[StoredNode | None]:
        """Return what nodes hold, None where there is none. `watch`: say once when that has changed."""

    def names(self, paths: Sequence[str], watch: bool = False) -> list[list[str]]:
        """Return the names of the nodes below each path, sorted; none where there is no node. `watch`: as in `read`."""

    def change(self, *steps: Step, durable: bool = True) -> Refusal | None:
        """Carry out all steps or none, once, also if an answer is lost: then the last one must be known by its data."""
        # Without `durable` only the end of this process need be survived; that of the machine with the next durable change.

    def close(self) -> None:
        """End the session: its ephemeral nodes vanish at once."""
