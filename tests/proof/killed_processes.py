"""P4, P5 and P9: processes and servers that are killed, and a cluster under random faults for a long time."""

import io
import itertools
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import redis

from tests.benchmarks._flatness import _sizes, change_of
from tests.cluster.daemons.campaign import LEDGERS, Campaign, check_ledger, submit_ledger, write_ledgers
from tests.cluster.daemons.counted import committed
from tests.cluster.daemons.test_campaign import ledgers_survive
from tests.crash.case import EXACT, Case
from tests.crash.driver_runs import DriverServer, Outcome, lives_of, run_in_processes, run_killed_at_random
from tests.crash.matrix import delta_cases
from tests.harness.cluster_machines import MOVED_AFTER_S, MachineCluster
from tests.harness.commands import environment, until
from tests.harness.kafka_topics import Topics
from tests.proof.proof_table import RowServers, Trial
from tests.spouts import test_bolt_kills
from tests.spouts.kafka import test_kafka_driver_kills
from tests.spouts.kafka.broker_kills import POINTS, kill_a_broker
from tests.spouts.redis import test_redis_stream_crashes
from tests.stores.campaigns import CAMPAIGNS
from tests.stores.catalog import STORES, Home

_HOMES = ("files", "files", "postgres", "s3", "zookeeper")
_FAULTS = 4
_KILLS = 5

Group = Iterator[Trial]


def killed(work: Path, seed: int) -> Group:
    """Give kills of drivers by store, log and source; of workers and executors of Spark; of supervisors and Nimbuses."""
    with RowServers(work) as servers:
        drivers = _Drivers(work, servers, seed)
        with closing(drivers):
            groups: list[tuple[Group, int]] = [
                (_cluster(work, servers, seed), 1),  # first: a row that is cut short has some of each
                (_on_spark(work, servers, seed), 1),
                (_sources(work, servers, seed), 1),
                (drivers.points(), 20),
                (drivers.zombies(), 10),
                (drivers.clock(), 6),
            ]
            yield from _in_turn(groups)


def _in_turn(groups: list[tuple[Group, int]]) -> Group:
    """Give so many of each group, round after round."""
    while True:
        for group, number in groups:
            yield from itertools.islice(group, number)


class _Drivers:
    """Drivers of the crash matrix, each a process that dies of a real signal."""

    def __init__(self, work: Path, servers: RowServers, seed: int) -> None:
        self._work, self._servers, self._seed = work, servers, seed
        self._numbers, self._forks = itertools.count(), dict[str, DriverServer]()

    def close(self) -> None:
        """End the processes that fork."""
        for each in self._forks.values():
            each.close()

    def points(self) -> Group:
        """Give every point, pairing and number of batches in work, in an order of its own for each seed."""
        for seed in itertools.count(self._seed):
            cases = [case for pairing in EXACT for case in delta_cases(pairing, seed)]
            random.Random(seed).shuffle(cases)
            yield from (self._trial(self._placed(case, at + seed)) for at, case in enumerate(cases))

    def zombies(self) -> Group:
        """Give drivers that are stopped between `begin_commit` and a put, replaced, and woken."""
        for seed in itertools.count(self._seed):
            paused = [case for pairing in EXACT for case in delta_cases(pairing, seed) if case.point == "P15"]
            yield from (self._trial(self._placed(case, at + seed)) for at, case in enumerate(paused))

    def clock(self) -> Group:
        """Give drivers that are killed by a clock, again and again until one is done."""
        for seed in itertools.count(self._seed):
            for pairing in EXACT:
                case = Case("any", pairing, "delta", "kill", 1 + 2 * (seed % 2), seed)
                yield Trial("driver, by a clock, Delta, log in files", partial(self._by_clock, case))

    def _placed(self, case: Case, at: int) -> Case:
        """Put the log, and every other time the states as well, somewhere."""
        home = _HOMES[at % len(_HOMES)]
        store = ("delta", "postgres", "postgres apart")[at // len(_HOMES) % 3] if home == "postgres" else "delta"
        return replace(case, log_at=self._servers.log_at(home), store=store)

    def _trial(self, case: Case) -> Trial:
        home = case.log_at.partition(":")[0] or "files"
        return Trial(f"driver, {case.store}, log in {home}", partial(self._run, case, home))

    def _run(self, case: Case, home: str) -> Mapping[str, int]:
        outcome = run_in_processes(case, self._folder(), self._fork(home))
        ends = len(lives_of(case)) - 1
        return _judged(outcome, {"zombies": ends} if case.how == "stop" else {"kills": ends})

    def _by_clock(self, case: Case) -> Mapping[str, int]:
        outcome = run_killed_at_random(
            case, self._folder(), self._fork("files"), random.Random(f"{case.pairing} {case.seed}")
        )
        return _judged(outcome, {"kills": len(outcome.crashed_after)})

    def _fork(self, home: str) -> DriverServer:
        """Return what forks drivers; it finds the servers in the environment that it was started with."""
        if home not in self._forks:
            self._forks[home] = DriverServer()
        return self._forks[home]

    def _folder(self) -> Path:
        folder = self._work / f"case-{next(self._numbers)}"
        folder.mkdir()
        return folder


def _judged(outcome: Outcome, counts: Mapping[str, int]) -> Mapping[str, int]:
    assert not outcome.differences(), outcome.differences()
    assert not outcome.torn, outcome.torn
    return counts


def _sources(work: Path, servers: RowServers, seed: int) -> Group:
    """Give drivers that are killed while they read files and tables that change, a topic of Kafka, a queue in Redis."""
    for at in itertools.count(seed):
        yield Trial("driver, source: CSV, Parquet, Delta", partial(_of_files, _made(work / f"files-{at}"), at))
        yield Trial("driver, source: Kafka, state: Redis", partial(_of_kafka, servers, _made(work / f"kafka-{at}"), at))
        yield Trial("driver, source: queue in Redis", partial(_of_queue, servers, _made(work / f"queue-{at}")))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _of_files(folder: Path, seed: int) -> Mapping[str, int]:
    test_bolt_kills.test_sums_are_exact_after_kills_at_random_while_the_sources_change(folder, seed)
    return {"kills": 8}


def _of_kafka(servers: RowServers, folder: Path, seed: int) -> Mapping[str, int]:
    promise, topics = ("transactional", "opaque")[seed % 2], Topics(servers["kafka"].bootstrap)
    found = test_kafka_driver_kills.run(topics, servers["redis"], folder, promise, 20_000, 200, _KILLS, 0.3, seed)
    assert found.is_exact, found
    return {"kills": found.kills}


def _of_queue(servers: RowServers, folder: Path) -> Mapping[str, int]:
    with redirect_stdout(io.StringIO()) as said:
        test_redis_stream_crashes.test_a_queue_whose_driver_is_killed_anywhere_counts_exactly(servers["redis"], folder)
    return {"kills": int(said.getvalue().split()[0])}


def _on_spark(work: Path, servers: RowServers, seed: int) -> Group:
    """Give workers and executors that are killed or stopped while they commit."""
    for at in itertools.count(seed):
        yield Trial("worker and executor, state: Redis", partial(_campaign, servers, _made(work / f"spark-{at}"), at))


def _campaign(servers: RowServers, folder: Path, seed: int) -> Mapping[str, int]:
    program = [sys.executable, "-m", "tests.crash.commit_tasks.kill_campaign", "--part=cluster", f"--seed={seed}"]
    said = subprocess.run(
        [*program, f"--redis={servers['redis'].port}", "--pairings=1"],
        cwd=folder, env=environment(SPARK_LOCAL_IP="127.0.0.1"), capture_output=True, text=True, timeout=2400, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout[-2000:] + said.stderr[-2000:]
    happened = [
        line for line in said.stdout.splitlines() if "@" in line and ": exact" in line and "did not happen" not in line
    ]
    stopped = sum(" pause@" in line for line in happened)
    raised = sum(" raise@" in line for line in happened)
    return {"cases": len(happened), "kills": len(happened) - stopped - raised, "zombies": stopped}


def _cluster(work: Path, servers: RowServers, seed: int, ensemble: bool = False) -> Group:
    """Give random faults in a row over two ledgers on a cluster of processes."""
    for at in itertools.count(seed):
        home = "ZooKeeper" if ensemble else "SQLite"
        folder = _made(work / f"cluster-{home}-{at}")
        yield Trial(f"supervisor, Nimbus, driver; {home}", partial(_ledgers, folder, servers, at, ensemble))


def _ledgers(folder: Path, servers: RowServers, seed: int, on_ensemble: bool) -> Mapping[str, int]:
    ensemble = [servers["ensemble"]] if on_ensemble else []
    address = f"zookeeper://{ensemble[0].hosts}/cluster{seed}" if ensemble else str(folder / "cluster")
    with redis.Redis.from_url(servers.redis_url) as client:
        client.flushall()  # the ledger of the cluster before is of another log, and refused
    cluster = MachineCluster(folder, address, MOVED_AFTER_S, max_deaths=100, LEDGER_REDIS=servers.redis_url)
    with redirect_stdout(io.StringIO()) as said, cluster:
        cluster.up(machines=2, nimbuses=2)
        ledgers_survive(cluster, servers.redis_url, (_FAULTS, seed), *ensemble)
    faults = re.findall(r"^ *\d+  (.*?)\|", said.getvalue(), re.MULTILINE)
    frozen = sum(bool(re.search(r" frozen", each)) for each in faults)
    deaths = sum(bool(re.search(r" (killed|lost|away)", each)) for each in faults)
    supervisors = sum(each.startswith(("supervisor", "machine")) and "frozen" not in each for each in faults)
    return {"faults": len(faults), "kills": deaths, "zombies": frozen, "supervisors": supervisors}


def servers_killed(work: Path, seed: int) -> Group:
    """Give kills of each store's server in the middle of commits, of a Kafka broker that leads, of members of ZooKeeper."""
    with RowServers(work) as servers:
        homes = (_of_store(name, work, servers, seed) for name, store in STORES.items() if store.server is not None)
        groups = [(each, 1) for each in homes]
        yield from _in_turn([*groups, (_brokers(servers, seed), 2), (_cluster(work, servers, seed, ensemble=True), 1)])


def _of_store(name: str, work: Path, servers: RowServers, seed: int) -> Group:
    home = Home(STORES[name], _made(work / name))
    servers.callback(home.close)
    for at in itertools.count(seed):
        yield Trial(f"server of {name}", partial(CAMPAIGNS["kills"].run, home, _KILLS, at))


def _brokers(servers: RowServers, seed: int) -> Group:
    for at in itertools.count(seed):
        for promise, point, copies in itertools.product(("transactional", "opaque"), POINTS, (2, 1)):
            yield Trial(f"broker of Kafka, {copies} copies", partial(_broker, servers, promise, point, copies, at))


def _broker(servers: RowServers, promise: str, point: str, copies: int, seed: int) -> Mapping[str, int]:
    outcome = kill_a_broker(servers["two brokers"], promise, point, copies, seed)
    assert outcome.exact, outcome
    return {"kills": 1, "exact": 1}


_BATCHES = 100
_HOUR_S = 3600.0
_FLAT = 1.05


def long_run(work: Path, seed: int) -> Iterator[Trial]:
    """Give one fault after the other; at the end the totals must be exact and, after an hour, memory flat."""
    samples: list[dict[str, float]] = []
    with RowServers(work) as servers:
        url, folder, began = servers.redis_url, work / "cluster", time.monotonic()
        folder.mkdir()
        with MachineCluster(folder, str(folder / "state"), MOVED_AFTER_S, max_deaths=100, LEDGER_REDIS=url) as cluster:
            cluster.up(machines=3, nimbuses=2)
            write_ledgers(cluster)
            storms = {name: submit_ledger(cluster, name) for name in LEDGERS}
            campaign = Campaign(cluster, seed, storms, lambda line: None)
            campaign.both_commit()
            try:
                while True:
                    yield Trial("fault", partial(_fault, campaign, url, began, samples), samples)
            except GeneratorExit:  # enough
                _check_end(cluster, storms, url)
    if time.monotonic() - began > 0.9 * _HOUR_S:
        memory = {name: change for name, change in grown(samples).items() if name.startswith("largest")}
        assert max(memory.values()) <= _FLAT, memory


def _check_end(cluster: MachineCluster, storms: Mapping[str, str], url: str) -> None:
    """Kill both topologies; every total must be exact."""
    for storm_id in storms.values():
        cluster.client.kill(storm_id, 5)
    until(lambda: not set(storms.values()) & set(cluster.state.active_storms()), "both are forgotten")
    until(lambda: not list(cluster.left()), "every driver has ended")
    for name in LEDGERS:
        check_ledger(cluster, name, url)


def _fault(campaign: Campaign, url: str, began: float, samples: list[dict[str, float]]) -> Mapping[str, int]:
    before = {name: committed(campaign.cluster, name) for name in LEDGERS}
    campaign.run(1)
    samples.append({"seconds": round(time.monotonic() - began, 1), **_sample(campaign.cluster, url)})
    return {"faults": 1, "batches": sum(committed(campaign.cluster, name) - before[name] for name in LEDGERS)}


def _sample(cluster: MachineCluster, url: str) -> dict[str, float]:
    """Return the memory of each process, the sizes of log and state, and how long a batch takes while nothing is broken."""
    first, began = committed(cluster, "redis"), time.monotonic()
    until(lambda: committed(cluster, "redis") >= first + _BATCHES, "it commits")
    sample = {"batch, ms": (time.monotonic() - began) / (committed(cluster, "redis") - first) * 1000}
    for at, each in enumerate([*cluster.nimbuses, *cluster.machines]):
        sample[f"{'Nimbus' if at < len(cluster.nimbuses) else 'supervisor'} {at + 1}, MB"] = _megabytes(
            each.process.pid
        )
    for role in ("Nimbus", "supervisor"):  # each start has another size, by 6 %
        sample[f"largest {role}, MB"] = max(value for name, value in sample.items() if name.startswith(role))
    sample["largest driver, MB"] = max((_megabytes(each.pid) for each in cluster.left()), default=0.0)
    for name, what in {"delta": "log of the Delta ledger", "redis": "log of the Redis ledger"}.items():
        log = _sizes(Path(cluster.log_address(name)))
        sample |= {f"{what}, KB": sum(log) / 1024, f"{what}, files": len(log)}
    table = _sizes(cluster.folder / "states" / "delta")
    sample |= {"Delta table, KB": sum(table) / 1024, "Delta table, files": len(table)}
    with redis.Redis.from_url(url) as client:
        sample["Redis, KB"] = client.info("memory")["used_memory_dataset"] / 1024
    return {name: round(value, 2) for name, value in sample.items()}


def _megabytes(pid: int) -> float:
    with suppress(psutil.NoSuchProcess):
        return float(psutil.Process(pid).memory_info().rss) / (1 << 20)
    return 0.0


def grown(samples: list[dict[str, float]]) -> dict[str, float]:
    """Return by how much each figure has grown: the median of the last third as a multiple of that of the second.

    Of the largest process of a role, the largest one of the last third is compared with the largest one before: a process takes
    104 or 110 MB from its start on, as it happens, so the median jumps when there is one more of these.
    """
    names = [name for name in (samples[0] if samples else ()) if name != "seconds"]
    values = {name: [sample[name] for sample in samples] for name in names}
    return {name: (_peak_of if name.startswith("largest") else change_of)(each) for name, each in values.items()}


def _peak_of(values: Sequence[float]) -> float:
    third = max(1, len(values) // 3)
    return round(max(values[-third:]) / max(values[:-third] or values), 3)
