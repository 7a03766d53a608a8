"""P10: histories of appends to lists beside killed drivers and servers, exported for Elle, and checked from the definition.

A transaction appends values to lists, each value once, and reads whole lists. A history is right if there is an order of its
transactions, which every process agrees with, in which each read sees what was appended before it: it is then serializable,
and no process sees time run backwards.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from states.delta import DeltaState
from states.redis import RedisState
from tests.crash.case import WORDS, ScriptedSpout, rows_of
from tests.crash.driver_runs import DriverServer
from tests.crash.fuse import Fuse
from tests.crash.test_feed_kills import config_of
from tests.harness.servers import Server
from tests.proof.proof_table import RowServers, Trial
from trident import TridentTopology, open_state
from trident.errors import BackendError, LogError, StateError
from trident.log.log_address import open_reader
from trident.operations import CombinerAggregator
from trident.state import StateSpec
from trident.tuples import TridentTuple

_READERS, _ROWS = 2, 600


def histories(work: Path, seed: int, rows: int = _ROWS) -> Iterator[Trial]:
    """Give runs over Delta whose drivers are killed, and over a Redis that is killed as well; each leaves its history."""
    (work / "histories").mkdir()
    with RowServers(work) as servers, closing(DriverServer(append_or_read)) as drivers:
        for at in itertools.count(seed):
            yield Trial("Delta, drivers killed", partial(_run, drivers, work, at, rows))
            yield Trial(
                "Redis, drivers and server killed", partial(_run, drivers, work, at, rows, servers["redis that keeps"])
            )


def _run(drivers: DriverServer, work: Path, seed: int, rows: int, redis: Server | None = None) -> Mapping[str, int]:
    name = f"{'delta' if redis is None else 'redis'}-{seed}"
    folder, chance = work / name, random.Random(seed)
    folder.mkdir()
    life: dict[str, Any] = {"folder": str(folder), "name": name, "seed": seed, "log_dir": str(folder / "log")}
    life |= {"rows": rows, "number": 0, "redis": "" if redis is None else f"redis://{redis.address}/0"}
    readers = [drivers.start({**life, "role": "reader", "number": at}) for at in range(_READERS)]
    kills = 0
    with _killed_now_and_then(redis, random.Random(f"server {seed}")) as bounces:
        while not (folder / "done").exists():
            life["number"] += 1
            doom = {"kill_after_s": chance.uniform(0.1, 0.4 + 0.2 * kills)}
            end = drivers.wait(drivers.start({**life, **doom, "role": "driver"}))
            assert end["ended"] in (0, -signal.SIGKILL), end
            kills += end["ended"] != 0
    assert [drivers.wait(pid) for pid in readers] == [{"ended": 0}] * _READERS
    history = _history(folder, life)
    (work / "histories" / f"{name}.edn").write_text(edn(history))
    assert (found := anomalies(history)) == [], found[:5]
    reads = sum(not txn.appends for txn in history)
    counts = {"kills": kills, "server kills": len(bounces), "reads": reads}
    return {**counts, "appends": sum(len(txn.appends) for txn in history)}


@contextmanager
def _killed_now_and_then(server: Server | None, chance: random.Random) -> Iterator[list[int]]:
    """Kill a server and start it again on what it kept, meanwhile; gives the list of its kills."""
    done, kills = threading.Event(), list[int]()

    def kill() -> None:
        while server is not None and not done.wait(chance.uniform(0.5, 2.0)):
            server.kill()
            server.start()
            kills.append(server.port)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield kills
    finally:
        done.set()
        thread.join()


def _history(folder: Path, life: Mapping[str, Any]) -> list[Txn]:
    """Return the committed batches in the order of the log, as one process, and what each reader saw."""
    rows = rows_of(life["seed"], life["rows"])
    with closing(open_reader(life["log_dir"])) as reader:
        records = reader.refresh().history
    batches = [[(rows[at].word, rows[at].weight) for at in record.spouts["rows"]["rows"]] for record in records]
    history = [Txn(0, batch) for batch in batches]
    for at in range(_READERS):
        lines = (folder / f"reads-{at}.jsonl").read_text().splitlines()
        history += [Txn(1 + at, reads=json.loads(line)) for line in lines]
    return history


BATCH_SIZE = 10


class Appended(CombinerAggregator[list[int]]):
    """A list of all numbers, in the order in which they came."""

    def init(self, tuple: TridentTuple) -> list[int]:
        return [int(tuple[0])]

    def combine(self, val1: list[int], val2: list[int]) -> list[int]:
        return [*val1, *val2]

    def zero(self) -> list[int]:
        return []


def topology_of(life: dict[str, Any]) -> TridentTopology:
    """Append the weight of each row to the list of its word; what a replay of a batch has is another draw."""
    topology = TridentTopology(life["name"])
    rows = topology.new_stream(
        "rows", ScriptedSpout("changing", life["seed"], life["number"], Fuse(), life["rows"], BATCH_SIZE)
    )
    spec: StateSpec = (
        DeltaState.opaque(f"{life['folder']}/lists") if not life["redis"] else RedisState.opaque(life["redis"])
    )
    lists = rows.group_by("word").persistent_aggregate(
        spec, "weight", Appended(), "weights: array<bigint>", state_name="lists"
    )
    lists.parallelism_hint(1 + 2 * bool(life["redis"]))
    return topology


def append_or_read(life: dict[str, Any]) -> None:
    """Run a driver until its source is read, or a reader until that is so."""
    signal.alarm(600)
    if life["role"] == "reader":
        read(life)
        return
    with topology_of(life).start(config_of(life)) as running:
        running.process_all_available()
    (Path(life["folder"]) / "done").touch()


def read(life: dict[str, Any]) -> None:
    """Read all lists again and again, once more when the driver is done; a line of JSON each time that they are others."""
    folder, before = Path(life["folder"]), None
    with (folder / f"reads-{life['number']}.jsonl").open("a") as journal:
        is_last = False
        while not is_last:
            is_last = (folder / "done").exists()
            try:
                with open_state(topology_of(life), "lists", config_of(life)) as state:
                    while not is_last:
                        is_last = (folder / "done").exists()
                        lists = dict(zip(WORDS, state.multi_get(WORDS), strict=True))
                        if lists != before:
                            before = lists
                            journal.write(json.dumps({key: values or [] for key, values in lists.items()}) + "\n")
            except (LogError, StateError) as error:
                # There is no log yet; or the server was killed, or is away: that is said, and the reader tries again.
                is_last = False
                if isinstance(error, StateError) and not isinstance(error, BackendError):
                    raise


@dataclass(frozen=True)
class Txn:
    """One transaction.

    `appends`: keys and values, in their order.
    `reads`: by key, the whole list.
    """

    process: int
    appends: Sequence[tuple[str, int]] = ()
    reads: Mapping[str, Sequence[int]] = field(default_factory=dict)


def anomalies(history: Sequence[Txn]) -> list[str]:
    """Say what is wrong; the transactions of a process are in its order, and the last reads see everything."""
    found: list[str] = []
    writers: dict[tuple[str, int], int] = {}
    for number, txn in enumerate(history):
        for append in txn.appends:
            if append in writers:
                found.append(f"{append} is appended twice")
            writers[append] = number
    orders: dict[str, Sequence[int]] = defaultdict(tuple)
    for txn in history:
        for key, values in txn.reads.items():
            found += _bad_read(history, key, values, writers)
            shorter, longer = sorted((values, orders[key]), key=len)
            if list(longer[: len(shorter)]) != list(shorter):
                found.append(f"{key}: {list(shorter)[-5:]} and {list(longer)[-5:]} are no prefixes of one order")
            orders[key] = longer
    found += [f"{append} is lost" for append in writers if append[1] not in set(orders[append[0]])]
    return found or _cycles(history, orders, writers)


def _bad_read(
    history: Sequence[Txn], key: str, values: Sequence[int], writers: Mapping[tuple[str, int], int]
) -> Iterator[str]:
    """Say what no order could make right: values that come twice, that nobody appended, that are half of a transaction's."""
    if len(set(values)) < len(values):
        yield f"{key}: {list(values)[-5:]} has a value twice"
    for value in values:
        if (key, value) not in writers:
            yield f"{key}: {value} is read, and no committed transaction appends it"
    if values and (last := writers.get((key, values[-1]))) is not None:
        missing = [value for name, value in history[last].appends if name == key and value not in values]
        if missing:
            yield f"{key}: a read ends in the middle of a transaction, before {missing}"


def _cycles(
    history: Sequence[Txn], orders: Mapping[str, Sequence[int]], writers: Mapping[tuple[str, int], int]
) -> list[str]:
    """Return the transactions that no order can hold: what is left when those that depend on nothing else have gone."""
    after = _dependencies(history, orders, writers)
    before = dict.fromkeys(range(len(history)), 0)
    for other in itertools.chain.from_iterable(after.values()):
        before[other] += 1
    free = [number for number, count in before.items() if not count]
    while free:
        number = free.pop()
        del before[number]
        for other in after[number]:
            before[other] -= 1
            if not before[other]:
                free.append(other)
    return [
        f"transaction {number} is in a cycle, or behind one: {history[number]}"[:500] for number in list(before)[:5]
    ]


def _dependencies(
    history: Sequence[Txn], orders: Mapping[str, Sequence[int]], writers: Mapping[tuple[str, int], int]
) -> Mapping[int, set[int]]:
    """Return what must come after each transaction: later appends, reads that see it, appends that it does not see."""
    after: dict[int, set[int]] = {number: set() for number in range(len(history))}
    for key, values in orders.items():
        for one, other in itertools.pairwise(writers[key, value] for value in values):
            after[one].add(other)
    last: dict[int, int] = {}
    for number, txn in enumerate(history):
        if txn.process in last:
            after[last[txn.process]].add(number)
        last[txn.process] = number
        for key, values in txn.reads.items():
            order = orders[key]
            if values:
                after[writers[key, values[-1]]].add(number)
            if len(values) < len(order):
                after[number].add(writers[key, order[len(values)]])
    return {number: others - {number} for number, others in after.items()}


def edn(history: Sequence[Txn]) -> str:
    """Write a history as Elle reads it (`--model list-append`): an invocation and its end for each transaction."""
    lines = []
    for number, txn in enumerate(history):
        appends = [f'[:append "{key}" {value}]' for key, value in txn.appends]
        asked = [f'[:r "{key}" nil]' for key in txn.reads]
        seen = [f'[:r "{key}" [{" ".join(map(str, values))}]]' for key, values in txn.reads.items()]
        for at, (kind, ops) in enumerate((("invoke", appends + asked), ("ok", appends + seen))):
            lines.append(
                f"{{:index {2 * number + at}, :type :{kind}, :process {txn.process}, :f :txn, :value [{' '.join(ops)}]}}"
            )
    return "\n".join(lines) + "\n"
