"""P10: histories of appends to lists beside killed drivers and servers, exported for Elle, and checked from the definition."""

from __future__ import annotations

import itertools
import json
import random
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.crash.driver_runs import DriverServer
from tests.crash.spout import rows_of
from tests.harness.servers import Server
from tests.proof.list_append import Txn, anomalies, edn
from tests.proof.proof_row import Trial
from tests.proof.proof_servers import RowServers
from trident.coordination.log_address import open_reader

_READERS, _ROWS = 2, 600


def histories(work: Path, seed: int, rows: int = _ROWS) -> Iterator[Trial]:
    """Give runs over Delta whose drivers are killed, and over a Redis that is killed as well; each leaves its history."""
    (work / "histories").mkdir()
    with RowServers(work) as servers, closing(DriverServer("tests.proof.append_driver")) as drivers:
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
