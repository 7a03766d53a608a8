"""What a Spark task gets, so that it becomes a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trident.storm.execution.task_layout import TaskLayout
from trident.storm.links.link_keys import Keys
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import StormTopology

__all__ = ["Launch", "Ticket"]


@dataclass(frozen=True)
class Ticket:
    """Enough to reach the driver. The rest needs the user's modules, and a failure to load it is reported to the driver.

    Attributes
    ----------
    registry
        The driver's address.
    launch
        A pickled `Launch`.
    """

    topology: str
    worker: int
    incarnation: int
    registry: str
    timeout_s: float
    keys: Keys
    launch: bytes = field(repr=False)


@dataclass(frozen=True)
class Launch:
    """What all workers run."""

    topology: StormTopology
    pickled: Mapping[str, bytes]
    layout: TaskLayout
    conf: StormConfig
