"""`states_of`: the states of a running Trident topology, for its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trident.coordination.log_state import LogState
from trident.graph import Graph, JoinWithinNode, WindowNode
from trident.ui.cluster_pages import Page

if TYPE_CHECKING:
    from trident.runtime.driver.running import RunningTopology

__all__ = ["states_of"]


def states_of(running: RunningTopology, descriptions: Sequence[Page]) -> list[Page]:
    """Return each state: what it is, how exact it is, where it commits, and which batch changed it last.

    `descriptions` are those of `trident.explain.describe`, which stay the same while the topology runs.
    """
    placements, log = running.placements, running.log_state
    closed = _windows(running.graph)
    last = _last_commits(log)
    found = []
    for described in descriptions:
        name = described["state"]
        placed, (txid, at_ms) = placements.get(name), last.get(name, (None, None))
        found.append(
            {
                **described,
                "guarantee": _guarantee(described),
                "exact": {"exact": True, "not exact": False}.get(_guarantee(described) or ""),
                "placement": None if placed is None else placed.where,
                "placementWhy": None if placed is None else placed.why,
                "lastTxid": txid,
                "lastCommitTime": at_ms,
                "canLookUp": name not in closed,
            }
        )
    return found


def _guarantee(described: Page) -> str | None:
    """Return the weakest guarantee of the streams that feed a state; None if none does."""
    found = [stream["guarantee"] for stream in described["streams"].values()]
    return next((each for each in ("not exact", "unknown", "exact") if each in found), None)


def _last_commits(log: LogState) -> dict[str, tuple[int | None, int | None]]:
    """Return by state the last batch that touched it, and when; of one long ago only the batch."""
    touched = {name: partitions for name, partitions in list(log.touched.items()) if partitions}
    found: dict[str, tuple[int | None, int | None]] = {
        name: (max(int(sentinel.txid) for sentinel in list(partitions.values())), None)
        for name, partitions in touched.items()
    }
    for commit in list(log.history):
        for name, partitions in commit.touched.items():
            if partitions:
                found[name] = (commit.txid, commit.at_ms)
    return found


def _windows(graph: Graph) -> set[str]:
    return {node.state for node in graph.nodes if isinstance(node, WindowNode | JoinWithinNode)}
