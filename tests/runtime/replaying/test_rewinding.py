"""`state_recovery="rewind"`: a store that was set back is brought forward by the history, exactly, or refused by name."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import trident
from spouts import FixedBatchSpout
from tests.harness.crashing_stores import DictMap
from tests.harness.topology_runs import run_all, start
from trident import TridentTopology
from trident.errors import RewindError, StateMismatchError
from trident.operations import Count, MapGet, Sum
from trident.state import StateSpec, map_state

HISTORY = {"history": "7d"}


class Stores:
    """Partitions of states as dicts, which can be set back."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int], dict[Any, Any]] = {}

    def state(self, kind: str = "opaque") -> StateSpec:
        return map_state(
            lambda conf, partition, count: Emptyable(self.entries.setdefault((conf.state, partition), {})), kind
        )


class Emptyable(DictMap):
    def reset(self) -> None:
        self.entries.clear()


def test_first(tmp_path: Path, caplog: Any) -> None:
    stores = Stores()

    def topology(rows: int) -> TridentTopology:
        topology = TridentTopology("t")
        words = topology.new_stream("rows", FixedBatchSpout("w: string", 1, *[[f"w{n % 7}"] for n in range(rows)]))
        words.group_by("w").persistent_aggregate(stores.state(), Count(), "count").parallelism_hint(3)
        words.persistent_aggregate(stores.state(), Count(), "total")
        return topology

    run_all(topology(10), "in_process", log_dir=str(tmp_path), **HISTORY)
    old = copy.deepcopy(stores.entries)
    run_all(topology(30), "in_process", log_dir=str(tmp_path), **HISTORY)
    new = copy.deepcopy(stores.entries)
    for key in stores.entries:
        if key[0] == "count":
            stores.entries[key] = copy.deepcopy(old[key])
    with pytest.raises(StateMismatchError, match="rewind"):
        run_all(topology(30), "in_process", log_dir=str(tmp_path), **HISTORY)
    run_all(topology(30), "in_process", log_dir=str(tmp_path), state_recovery="rewind", **HISTORY)
    assert stores.entries == new
    print(caplog.text)
    run_all(topology(40), "in_process", log_dir=str(tmp_path), **HISTORY)
    assert all(not s.wrong for s in trident.verify_state(topology(40), log_dir=str(tmp_path)))
