"""Random faults in a row over two ledgers: exact at the end, and no driver has committed after its successor had claimed."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.daemons.campaign import LEDGERS, Campaign, check_ledger, submit_ledger, write_ledgers
from tests.cluster.daemons.counted import LogWatch
from tests.harness.cluster_machines import MOVED_AFTER_S, MachineCluster
from tests.harness.commands import until
from tests.harness.zookeeper_servers import ZooKeeperEnsemble

_FAULTS = int(os.environ.get("TRIDENT_FAULTS", "50"))
_SEED = int(os.environ.get("TRIDENT_SEED", "15"))
_MANY = 100  # the most that is possible: after so many deaths in half an hour a topology is marked as failed


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  the table of the campaign


def ledgers_survive(cluster: MachineCluster, redis_url: str, of: tuple[int, int], *ensemble: ZooKeeperEnsemble) -> None:
    faults, seed = of
    write_ledgers(cluster)
    storms = {name: submit_ledger(cluster, name) for name in LEDGERS}
    with ExitStack() as open_things:
        watches = {name: open_things.enter_context(LogWatch(cluster, name)) for name in LEDGERS}
        done = Campaign(cluster, seed, storms, say, *ensemble)
        say(f"seed {seed}, {faults} faults, {cluster.address}")
        done.both_commit()
        done.run(faults)
        for storm_id in storms.values():
            cluster.client.kill(storm_id, 5)
        until(lambda: not set(storms.values()) & set(cluster.state.active_storms()), "both are forgotten")
        until(lambda: not list(cluster.left()), "every driver has ended")
        for name, watch in watches.items():
            batches = check_ledger(cluster, name, redis_url)
            drivers = watch.check()
            say(f"{name}: {batches} batches, totals exact; {len(drivers)} drivers, {watch.looks} looks at its log")
            say("\n".join(f"  {line}" for line in drivers))


@pytest.mark.server
@pytest.mark.parametrize(
    ("place", "faults", "machines"),
    [
        pytest.param("a file", (4, 1), 2, marks=pytest.mark.long),
        pytest.param("a file", (_FAULTS, _SEED), 3, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
        pytest.param("ZooKeeper", (_FAULTS, _SEED), 3, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_faults_in_a_row_leave_both_ledgers_exact(
    tmp_path: Path, redis_url: str, place: str, faults: tuple[int, int], machines: int, request: pytest.FixtureRequest
) -> None:
    ensemble = [request.getfixturevalue("ensemble")] if place == "ZooKeeper" else []
    address = f"zookeeper://{ensemble[0].hosts}/campaign" if ensemble else str(tmp_path / "cluster")
    with MachineCluster(tmp_path, address, MOVED_AFTER_S, max_deaths=_MANY, LEDGER_REDIS=redis_url) as cluster:
        cluster.up(machines=machines, nimbuses=2)
        ledgers_survive(cluster, redis_url, faults, *ensemble)
