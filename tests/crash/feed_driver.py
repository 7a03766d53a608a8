"""A driver whose states keep their changes, killed at random; and a reader of their feed that folds it, killed as well."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import trident
from states.postgres import PostgresState
from states.redis import RedisState
from tests.crash.case import ScriptedSpout
from tests.crash.driver import serve
from tests.crash.fuse import Fuse
from trident import Config, TridentTopology
from trident.operations import Sum

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
    """Return the settings of a driver and of a reader."""
    return Config(
        engine="in_process",
        log_dir=life["log_dir"],
        max_spout_pending=3,
        retry_backoff_ms=0,
        poll_interval_ms=1,
        takeover=True,
    )


def main(life: dict[str, Any]) -> None:
    """Run a driver until its source is read, or a reader until it is killed."""
    signal.alarm(60)
    if "kill_after_s" in life:
        threading.Timer(life["kill_after_s"], os.kill, (os.getpid(), signal.SIGKILL)).start()
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


if __name__ == "__main__":
    serve(main)
