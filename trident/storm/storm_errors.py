"""Errors of topologies of spouts and bolts; all others are in `trident.errors`."""

from __future__ import annotations

from trident.errors import TridentError

__all__ = ["TopologyDiedError", "WorkerLostError"]


class WorkerLostError(TridentError):
    """A worker's process ended, or was not heard of for too long. Its executors start again elsewhere."""


class TopologyDiedError(TridentError):
    """The workers of a topology died too often; the cause is what the last one died of."""

    def __init__(self, topology: str, deaths: int, window_s: float, worker: int, cause: str) -> None:
        super().__init__(topology, deaths, window_s, worker, cause)

    def __str__(self) -> str:
        topology, deaths, window_s, worker, cause = self.args
        return (
            f"topology {topology!r} ended: its workers died {deaths} times within {window_s:g} s, worker {worker} last, of: "
            f"{cause}. Unanswered messages are still with their queues. Mend the cause and start it again; "
            "max_worker_deaths allows more"
        )
