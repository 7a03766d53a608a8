"""Makes what Nimbus sees of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trident.cluster.nimbus.assigning import Health, Picture
from trident.cluster.state.cluster_records import (
    Assignment,
    DriverDeath,
    NodePort,
    StormBase,
    SupervisorInfo,
    WantedStatus,
)

NOW = 10_000.0


def base(launched: float = 0.0, status: WantedStatus | None = None, generation: int = 1, before: str = "") -> StormBase:
    return StormBase(
        "name",
        launched,
        status or WantedStatus("active", 0.0),
        1,
        {},
        "trident",
        "m:t",
        "code",
        {},
        generation,
        "",
        before,
    )


def assignment(slot: tuple[str, int], start: float = NOW - 100, generation: int = 1) -> Assignment:
    driver = Assignment.DRIVER
    return Assignment("code", {slot[0]: "host"}, {driver: NodePort(*slot)}, {driver: start}, "code", generation)


def supervisor(*ports: int) -> SupervisorInfo:
    return SupervisorInfo(NOW, "host", "id", (), ports or (1, 2), {}, 100.0)


def death(
    node: str,
    ago: float = 10.0,
    ran: float = 1.0,
    fatal: bool = False,
    generation: int = 1,
    start: float = NOW - 100,
) -> DriverDeath:
    return DriverDeath(NOW - ago, node, 1, generation, start, ran, fatal, "it broke")


def picture(
    bases: Mapping[str, StormBase],
    assignments: Mapping[str, Assignment] | None = None,
    supervisors: Mapping[str, SupervisorInfo] | None = None,
    health: Mapping[str, Health] | None = None,
    deaths: Mapping[str, Sequence[DriverDeath]] | None = None,
    silent: Sequence[str] = (),
) -> Picture:
    assigned = assignments or {}
    return Picture(
        NOW,
        bases,
        assigned,
        {"a": supervisor(), "b": supervisor()} if supervisors is None else supervisors,
        {name: (health or {}).get(name, "alive") for name in assigned},
        {name: name not in silent for name in assigned},
        deaths or {},
        6,
    )
