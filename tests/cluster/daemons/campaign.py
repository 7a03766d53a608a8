"""Faults at random over a cluster that works, and two ledgers whose totals must be right after them."""

import contextlib
import random
import time
from collections.abc import Callable

import psutil
import pyarrow as pa
import redis
from deltalake import DeltaTable, QueryBuilder

from tests.cluster.daemons.counted import committed
from tests.harness.cluster_machines import MachineCluster, freeze
from tests.harness.commands import until, write_module
from tests.harness.servers import Server
from tests.harness.zookeeper_servers import ZooKeeperEnsemble

Fault = Callable[[], str]


class Campaign:
    """Does faults over topologies, whose ids `storms` has by their names; `say` prints a line of the table.

    At most one machine, one Nimbus and one member of ZooKeeper is broken at a time.
    """

    def __init__(
        self, cluster: MachineCluster, seed: int, storms: dict[str, str], say: Callable[[str], None],
        ensemble: ZooKeeperEnsemble | None = None,
    ) -> None:  # fmt: skip
        self.cluster, self.storms, self._say, self._ensemble = cluster, storms, say, ensemble
        self._draw = random.Random(seed)
        self._repairs: dict[str, tuple[str, Callable[[], None]]] = {}
        self._faults: list[Fault] = [
            self.driver_killed, self.driver_killed, self.driver_frozen, self.supervisor_killed, self.machine_lost,
            self.machine_frozen, self.leader_killed, self.all_nimbuses_and_a_driver_killed, self.rebalanced,
        ]  # fmt: skip
        if ensemble is not None:
            self._faults += [self.member_killed, self.leading_member_killed, self.majority_away]

    def run(self, faults: int) -> None:
        """Do so many faults, then repair what is broken and see both topologies commit."""
        for number in range(1, faults + 1):
            repaired = self._repair_some()
            began = time.monotonic()
            done = self._draw.choice(self._faults)()
            waits = self._draw.random() < 0.75  # else the next one comes while this one is being got over
            if waits:
                self.both_commit()
            took = f"{time.monotonic() - began:5.1f} s" if waits else "at once"
            at = ", ".join(f"{name} {committed(self.cluster, name)}" for name in self.storms)
            self._say(f"{number:3d}  {done}{repaired}  | got over: {took} | batches: {at}")
        self._repair_all()
        self.both_commit()

    def both_commit(self) -> None:
        """Wait until both topologies have committed two more batches."""
        wanted = {name: committed(self.cluster, name) + 2 for name in self.storms}
        until(lambda: self._have_committed(wanted), f"all of {wanted}")

    def _have_committed(self, wanted: dict[str, int]) -> bool:
        for each in [*self.cluster.machines, *self.cluster.nimbuses]:
            code = each.process.poll()
            if code is not None and code > 0:  # it found no ZooKeeper when it started; systemd starts it again
                each.start()
        return all(committed(self.cluster, name) >= batch for name, batch in wanted.items())

    def driver_killed(self) -> str:
        name, process = self._driver()
        _if_there(process.kill)
        return f"driver of {name} killed"

    def driver_frozen(self) -> str:
        """Stop a driver alone with SIGSTOP; it wakes when it has been replaced, or before."""
        self._repair("driver")
        name, process = self._driver()
        _if_there(lambda: freeze([process], self.cluster.address))
        self._repairs["driver"] = "driver woken", lambda: _if_there(process.resume)
        return f"driver of {name} frozen"

    def supervisor_killed(self) -> str:
        """Kill a supervisor; its drivers go on."""
        self._repair("machine")
        number = self._draw.randrange(len(self.cluster.machines))
        machine = self.cluster.machines[number]
        machine.kill()
        self._repairs["machine"] = "supervisor started", machine.start
        return f"supervisor {number + 1} killed"

    def machine_lost(self) -> str:
        """Kill a supervisor and its drivers at once."""
        self._repair("machine")
        name = self._draw.choice(list(self.storms))
        machine = self.cluster.machine_of(self.storms[name])
        machine.lose()
        self._repairs["machine"] = "machine back", machine.start
        return f"machine of {name} lost"

    def machine_frozen(self) -> str:
        """Stop a supervisor and its drivers."""
        self._repair("machine")
        name = self._draw.choice(list(self.storms))
        machine = self.cluster.machine_of(self.storms[name])
        stopped = machine.freeze()
        self._repairs["machine"] = "machine woken", lambda: _wake(stopped)
        return f"machine of {name} frozen"

    def leader_killed(self) -> str:
        self._repair("nimbus")
        leader = self.cluster.leader()
        leader.kill()
        self._repairs["nimbus"] = "Nimbus started", leader.start
        return "leading Nimbus killed"

    def all_nimbuses_and_a_driver_killed(self) -> str:
        """Kill every Nimbus, then a driver; start the Nimbuses again."""
        self._repair("nimbus")
        for each in self.cluster.nimbuses:
            each.kill()
        done = self.driver_killed()
        for each in self.cluster.nimbuses:
            each.start()
        return f"every Nimbus and {done}"

    def rebalanced(self) -> str:
        name = self._draw.choice(list(self.storms))
        self.cluster.leader()
        self.cluster.client.rebalance(name, 1)
        return f"{name} rebalanced"

    def member_killed(self) -> str:
        self._repair("member")
        return self._kill_member(self._draw.choice(self._members()))

    def leading_member_killed(self) -> str:
        self._repair("member")
        assert self._ensemble is not None
        until(lambda: self._ensemble is not None and self._ensemble.leader(), "a member leads")
        leader = self._ensemble.leader()
        return self._kill_member(leader or self._members()[0])

    def majority_away(self) -> str:
        """Kill two members of ZooKeeper for as long as sessions last, and longer."""
        self._repair("member")
        gone = self._draw.sample(self._members(), 2)
        for each in gone:
            each.kill()
        seconds = self._draw.choice([1.0, 4.0, 8.0])
        time.sleep(seconds)  # the fault itself: how long there is no majority
        for each in gone:
            each.start()
        return f"majority of ZooKeeper away for {seconds:g} s"

    def _kill_member(self, member: Server) -> str:
        member.kill()
        self._repairs["member"] = "member started", member.start
        return f"{member.name} killed"

    def _members(self) -> list[Server]:
        assert self._ensemble is not None
        return self._ensemble.members

    def _driver(self) -> tuple[str, psutil.Process]:
        name = self._draw.choice(list(self.storms))
        until(lambda: self.cluster.beat(self.storms[name]) is not None, f"the driver of {name} has a heartbeat")
        return name, self.cluster.driver_of(self.storms[name])

    def _repair_some(self) -> str:
        done = [kind for kind in list(self._repairs) if self._draw.random() < 0.5]
        return "".join(f"; before: {self._repair(kind)}" for kind in done)

    def _repair_all(self) -> None:
        for kind in list(self._repairs):
            self._repair(kind)

    def _repair(self, kind: str) -> str:
        if kind not in self._repairs:
            return ""
        what, repair = self._repairs.pop(kind)
        repair()
        return what


def _if_there(act: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        act()


def _wake(stopped: list[psutil.Process]) -> None:
    for each in stopped:
        _if_there(each.resume)


LEDGERS = ("delta", "redis")

_SOURCE = """
    import os
    from spouts import FixedBatchSpout
    from states.delta import DeltaState
    from states.redis import RedisState
    from trident import TridentTopology
    from trident.operations import Sum

    BOOKED = [["ann", 3], ["bob", 5], ["ann", -1], ["cy", 7]]

    def made(name, state):
        topology = TridentTopology(name)
        spout = FixedBatchSpout("account: string, amount: bigint", len(BOOKED), *BOOKED, cycle=True)
        booked = topology.new_stream("bookings", spout)
        booked.group_by("account").persistent_aggregate(state, "amount", Sum(), "total", state_name="totals")
        return topology

    REDIS = os.environ.get("LEDGER_REDIS", "redis://127.0.0.1:6379/0")
    delta = made("delta", DeltaState.opaque(os.environ.get("COUNTING_FOLDER", "states") + "/delta"))
    redis = made("redis", RedisState.opaque(REDIS, prefix="totals", layout="fields"))
"""

_EACH_BATCH = {"ann": 2, "bob": 5, "cy": 7}


def write_ledgers(cluster: MachineCluster) -> None:
    write_module(cluster.folder, "ledgers", _SOURCE)


def submit_ledger(cluster: MachineCluster, name: str, every_ms: int = 50) -> str:
    """Submit one of them; returns its id."""
    return cluster.submit(name, f"ledgers.py:{name}", batch_emit_interval_ms=str(every_ms))


def check_ledger(cluster: MachineCluster, name: str, redis_url: str) -> int:
    """Check that every total is exact; returns the number of committed batches."""
    batches = committed(cluster, name)
    assert totals(cluster, name, redis_url) == {name: each * batches for name, each in _EACH_BATCH.items()}
    return batches


def totals(cluster: MachineCluster, name: str, redis_url: str) -> dict[str, int]:
    """Return the totals of a ledger that has stopped, read with the clients of its store."""
    if name == "delta":
        table = DeltaTable(cluster.folder / "states" / name)
        rows = pa.table(QueryBuilder().register("t", table).execute("SELECT account, total FROM t"))
        return dict(zip(rows["account"].to_pylist(), rows["total"].to_pylist(), strict=True))
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        return {key.partition(":")[2]: int(client.hget(key, "total")) for key in client.scan_iter("totals:[a-z]*")}
