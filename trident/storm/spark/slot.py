"""What the driver knows of one worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from trident.storm.spark.worker_jobs import WorkerJob

__all__ = ["Slot"]


@dataclass
class Slot:
    """One worker, in its present incarnation.

    Attributes
    ----------
    job
        The Spark job that runs it; None between two incarnations.
    line
        Where its messages come from; None until it has registered.
    address
        Where other workers send to.
    version
        The orders that it has reached.
    at_rest
        Whether it has nothing pending, and will send nothing more.
    blocked
        The components with a call that has not returned for a message timeout, and for how many seconds.
    """

    worker: int
    incarnation: int = 0
    job: WorkerJob | None = None
    line: bytes | None = None
    address: str = ""
    host: str = ""
    pid: int = 0
    heard_at: float = 0.0
    version: int = -1
    ready: bool = False
    ended: bool = False
    pending: int = 0
    at_rest: bool = False
    blocked: list[tuple[str, float]] = field(default_factory=list)
    links: dict[str, int] = field(default_factory=dict)

    def begin(self, incarnation: int, job: WorkerJob | None = None) -> None:
        """Forget the process before."""
        self.__init__(self.worker, incarnation, job, heard_at=monotonic())  # type: ignore[misc]

    def register(self, line: bytes, message: dict[str, Any]) -> None:
        """Take in where it runs."""
        self.line = line
        self.address, self.host, self.pid = message["address"], message["host"], message["pid"]

    def take(self, beat: dict[str, Any]) -> None:
        """Take in how it goes."""
        self.version, self.ready, self.pending = beat["version"], beat["ready"], beat["pending"]
        self.at_rest, self.links = beat["at_rest"], beat["links"]

    @property
    def name(self) -> str:
        """The worker and where it runs."""
        return f"worker {self.worker}" + (f" (process {self.pid} on {self.host})" if self.pid else "")

    @property
    def state(self) -> str:
        """What it does, in a word."""
        if self.ended or self.job is None:
            return "ended"
        return "starting" if self.line is None else "running" if self.ready else "opening"

    def as_status(self) -> dict[str, Any]:
        """Return what `RunningStormTopology.workers` shows."""
        return {
            "worker": self.worker,
            "state": self.state,
            "host": self.host,
            "pid": self.pid,
            "incarnation": self.incarnation,
            "pending": self.pending,
            "blocked": dict(self.blocked),
            "links": dict(self.links),
        }
