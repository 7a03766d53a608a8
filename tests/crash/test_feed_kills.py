"""A feed of changes gives what is committed, each change once and in order, whoever is killed meanwhile."""

import json
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import trident
from states.postgres import PostgresState
from states.redis import RedisState
from tests.crash.case import ScriptedSpout, rows_of
from tests.crash.driver_runs import DriverServer
from tests.crash.fuse import Fuse
from tests.harness.servers import Server
from trident import Config, TridentTopology, open_state
from trident.errors import LogError
from trident.log.log_address import open_reader
from trident.operations import Sum

pytestmark = [pytest.mark.slow, pytest.mark.server]


ROWS, BATCH_SIZE = 1000, 10  # a log remembers 100 batches


def topology_of(life: dict[str, Any]) -> TridentTopology:
    """Sum weights by word; what a replay of a batch has is another draw."""
    spout = ScriptedSpout("changing", life["seed"], life["number"], Fuse(), ROWS, BATCH_SIZE)
    store, target = life["store"]
    made: Any = {"postgres": PostgresState, "redis": RedisState}[store]
    spec = made.opaque(target, changes="1d", **life["options"])
    topology = TridentTopology(life["name"])
    words = topology.new_stream("rows", spout).group_by("word")
    words.persistent_aggregate(spec, "weight", Sum(), "weight", state_name="weights").parallelism_hint(
        life["partitions"]
    )
    return topology


def config_of(life: dict[str, Any]) -> Config:
    return Config(
        engine="in_process",
        log_dir=life["log_dir"],
        max_spout_pending=3,
        retry_backoff_ms=0,
        poll_interval_ms=1,
        takeover=True,
    )


def write_or_read(life: dict[str, Any]) -> None:
    """Run a driver until its source is read, or a reader until it is killed."""
    if life["role"] == "reader":
        read(life)
    else:
        with topology_of(life).start(config_of(life)) as running:
            running.process_all_available()
        (Path(life["folder"]) / "done").touch()


def read(life: dict[str, Any]) -> None:
    """Fold the feed into a file, which names the batch up to which it has: both change at once."""
    path = Path(life["folder"]) / "fold.json"
    fold: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"txid": 0, "values": {}}
    with trident.changes(topology_of(life), "weights", fold["txid"], config_of(life)) as feed:
        while fold["txid"] < life["until"]:
            for batch in feed.read(life["most"]):
                for (word,), before, after in batch.changes:
                    assert fold["values"].get(word) == before, (batch.txid, word, before, fold["values"].get(word))
                    fold["values"][word] = after
                fold["txid"] = batch.txid
                new = path.with_suffix(".new")
                new.write_text(json.dumps(fold))
                new.replace(path)


@pytest.fixture
def drivers() -> Iterator[DriverServer]:
    with closing(DriverServer(write_or_read)) as server:
        yield server


def life(folder: Path, store: str, postgres: Server, redis: Server, seed: int) -> dict[str, Any]:
    """Return what drivers and readers of a run are told, but for their role and number."""
    name, url = f"feed-{folder.name[-20:]}-{seed}", f"postgresql://trident@{postgres.address}/postgres"
    made: dict[str, Any] = {"folder": str(folder), "name": name, "seed": seed, "options": {}, "number": 0}
    made |= {"partitions": 1 + seed % 3, "log_dir": str(folder / "log")}
    if store.startswith("postgres"):
        log = f"{url}?topology={name}" if store == "postgres in one transaction" else made["log_dir"]
        few = {"max_keys_per_call": 1 + seed % 4} if seed % 2 else {}
        return {**made, "store": ("postgres", url), "log_dir": log, "options": few}
    options: dict[str, Any] = {
        "max_keys_per_call": 1 + seed % 4,
        **({"layout": "fields"} if store == "redis fields" else {}),
    }
    return {**made, "store": ("redis", f"redis://{redis.address}/0"), "options": options}


def committed(told: dict[str, Any]) -> tuple[int, dict[str, int]]:
    """Return the last batch by the log, and the sums that a plain dict has of all batches."""
    sums, rows = Counter[str](), rows_of(told["seed"], ROWS)
    with closing(open_reader(told["log_dir"])) as reader:
        log = reader.refresh()
    for record in log.history:
        for number in record.spouts["rows"]["rows"]:
            sums[rows[number].word] += rows[number].weight
    return log.txid, dict(sums)


STORES = ["postgres", "postgres in one transaction", "redis", "redis fields"]


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 21))])
@pytest.mark.parametrize(
    "store", [pytest.param(store, marks=pytest.mark.long) if "redis " in store else store for store in STORES]
)
def test_the_fold_of_a_feed_is_the_state_though_writers_are_killed(
    store: str, seed: int, postgres_server: Server, redis_server: Server, drivers: DriverServer, tmp_path: Path
) -> None:
    told, rng = life(tmp_path, store, postgres_server, redis_server, seed), random.Random(seed)
    batches, kills = ROWS // BATCH_SIZE, 0
    while not (tmp_path / "done").exists():
        told["number"] += 1
        end = drivers.wait(
            drivers.start({**told, "role": "driver", "kill_after_s": rng.uniform(0.05, 0.2 + 0.1 * kills)})
        )
        assert end["ended"] in (0, -signal.SIGKILL), end
        kills += end == {"ended": -signal.SIGKILL}
        with suppress(LogError):  # it was killed before it had one
            reader = {**told, "role": "reader", "until": committed(told)[0], "most": 1 + seed % 7}
            assert drivers.wait(drivers.start(reader)) == {"ended": 0}
    txid, sums = committed(told)
    assert (txid, kills > 0) == (batches, True)
    fold = json.loads((tmp_path / "fold.json").read_text())
    assert fold == {"txid": batches, "values": sums}
    with open_state(topology_of(told), "weights", config_of(told)) as state:
        assert dict(state.get_tuples()) == sums


@pytest.mark.long
@pytest.mark.parametrize("kills", [8, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize("store", ["postgres", "redis"])
def test_a_reader_that_is_killed_goes_on_where_it_was(
    store: str, kills: int, postgres_server: Server, redis_server: Server, drivers: DriverServer, tmp_path: Path
) -> None:
    told, rng, done, longest = life(tmp_path, store, postgres_server, redis_server, 5), random.Random(kills), 0, 0.1
    assert drivers.wait(drivers.start({**told, "role": "driver"})) == {"ended": 0}
    txid, sums = committed(told)
    reader = {**told, "role": "reader", "until": txid, "most": 1}
    while done < kills:
        end = drivers.wait(drivers.start({**reader, "kill_after_s": rng.uniform(0.02, longest)}))
        if end == {"ended": -signal.SIGKILL}:
            done += 1
            continue
        assert end == {"ended": 0}
        assert json.loads((tmp_path / "fold.json").read_text()) == {"txid": txid, "values": sums}
        (tmp_path / "fold.json").unlink()
        longest = max(0.03, 0.8 * longest)
    assert drivers.wait(drivers.start(reader)) == {"ended": 0}
    assert json.loads((tmp_path / "fold.json").read_text()) == {"txid": txid, "values": sums}
