"""What the tests of the Delta state share: states, readers, and the log that a commit asks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from states.delta import DeltaState, delta_session_conf
from trident.state.interfaces import StateConf, StateType
from trident.state.snapshottable import SnapshottableMap
from trident.state.txid import Sentinel, Txid, Winners
from trident.state.values import CombinerValueUpdater

WORDS = StateConf("words", "counts", key_fields=(("word", "string"),), value_type="bigint")
KINDS = {
    StateType.OPAQUE: DeltaState.opaque,
    StateType.TRANSACTIONAL: DeltaState.transactional,
    StateType.NON_TRANSACTIONAL: DeltaState.non_transactional,
}
ROOT = Path(__file__).resolve().parents[2]


def add(left: int, right: int) -> int:
    return left + right


def state_at(path: Path, conf: StateConf = WORDS, kind: StateType = StateType.OPAQUE, **options: Any) -> Any:
    state = KINDS[kind](path, **options).factory.make_state(conf, 0, 1)
    assert isinstance(state, SnapshottableMap)
    return state


def reader_at(path: Path, kind: StateType = StateType.OPAQUE) -> Any:
    conf = StateConf("words", "counts", key_fields=WORDS.key_fields, value_type="bigint", read_only=True)
    return state_at(path, conf, kind)


class Log:
    """The driver's side of a commit: winners, attempts and the sentinel that the partition must have."""

    def __init__(self) -> None:
        self.winners, self.expected = Winners(), None

    winners: Winners
    expected: Sentinel | None

    def txid(self, number: int, attempt: int) -> Txid:
        return Txid(number, attempt, self.winners, "inc", self.expected)

    def record(self, txid: Txid) -> None:
        self.winners, self.expected = self.winners.with_winner(int(txid), txid.attempt), txid.sentinel


def update(state: Any, counts: Mapping[str, int]) -> list[Any]:
    keys = [(word,) for word in counts]
    return list(state.multi_update(keys, [CombinerValueUpdater(add, n) for n in counts.values()]))


def commit(state: Any, log: Log, number: int, attempt: int, counts: Mapping[str, int], record: bool = True) -> None:
    txid = log.txid(number, attempt)
    state.begin_commit(txid)
    update(state, counts)
    state.commit(txid)
    if record:
        log.record(txid)


def values(state: Any, *words: str) -> list[Any]:
    return list(state.multi_get([(word,) for word in words]))


def version_of(path: Path) -> int:
    return DeltaTable(str(path)).version()


def live_files(path: Path) -> int:
    return len(DeltaTable(str(path)).file_uris())


def spark_with_delta() -> SparkSession:
    """Start Spark with the library of Delta, for a program of its own."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        # A plan that runs once takes longer to compile than to interpret.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    } | delta_session_conf(ROOT / "build" / "ivy")
    builder: Any = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session
