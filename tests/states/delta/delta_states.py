"""What the tests of the Delta state share: states, readers, and the log that a commit asks."""

import os
import sys
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from states.delta import DeltaState, delta_session_conf
from tests.harness.store_commits import Log as Log
from tests.harness.store_commits import add as add
from tests.harness.store_commits import commit as commit
from tests.harness.store_commits import update as update
from tests.harness.store_commits import values as values
from trident.state.interfaces import StateConf, StateType
from trident.state.map_state import SnapshottableMap
from trident.state.txid import Snapshot, Txid

WORDS = StateConf("words", "counts", key_fields=(("word", "string"),), value_type="bigint")
OPENED: list[Any] = []  # states that a test need not close
ROOT = Path(__file__).resolve().parents[3]


def state_at(path: Path, conf: StateConf = WORDS, kind: StateType = StateType.OPAQUE, **options: Any) -> Any:
    state = DeltaState.of_kind(kind, path, options).factory.make_state(conf, 0, 1)
    assert isinstance(state, SnapshottableMap)
    OPENED.append(state)
    return state


def begun_at(path: Path, batches: int = 1, **options: Any) -> tuple[Any, Log]:
    """Return a state and its log after some batches of one man each."""
    state, log = state_at(path, **options), Log()
    count_men(state, log, range(1, batches + 1))
    return state, log


def count_men(state: Any, log: Log, numbers: Iterable[int], attempt: int = 1) -> None:
    for number in numbers:
        commit(state, log, number, attempt, {"man": 1})


def close_after(state: Any, log: Log, txid: int) -> None:
    """Say that the log has a batch, and close the state, which shows it."""
    state.recorded(Snapshot(txid, log.winners))
    state.close()


def reader_at(path: Path, kind: StateType = StateType.OPAQUE) -> Any:
    conf = StateConf("words", "counts", key_fields=WORDS.key_fields, value_type="bigint", read_only=True)
    return state_at(path, conf, kind)


def changes(path: Path) -> Path:
    """The table that holds the changes of a state, beside the one that people read."""
    return path / "_trident" / "changes"


def clean_log(path: Path, keeps: int = 1) -> None:
    """Delete what a checkpoint holds, as Delta's own clean-up does; `keeps`: but the newest entries."""
    DeltaTable(changes(path)).create_checkpoint()
    entries = sorted((changes(path) / "_delta_log").glob("*.json"))
    for entry in entries[: len(entries) - keeps]:
        entry.unlink()


def people_read(path: Path) -> dict[Any, Any]:
    """What a plain reader of the table at the path sees, as it would sum it up."""
    rows = DeltaTable(path).to_pyarrow_table()
    assert len(rows.column_names) == 2
    keys, found = (column.to_pylist() for column in rows.columns)
    assert len(set(keys)) == len(keys), "a key has two rows"
    return dict(zip(keys, found, strict=True))


def version_of(path: Path) -> int:
    return DeltaTable(changes(path)).version()


def live_files(path: Path) -> int:
    return len(DeltaTable(changes(path)).file_uris())


def spark_with_delta() -> SparkSession:
    """Start Spark with the library of Delta, for a program of its own."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # of 10,000, which VACUUM makes tasks of
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


def records_in(path: Path) -> list[tuple[int, int]]:
    """Return `(txid, attempt)` of the batches that the file holds; a line that a kill cut is none."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [(int(line.split()[0]), int(line.split()[1])) for line in lines if line.endswith("\n")]


def commit_until_killed(state: Any, records: Path, attempt: int) -> None:
    """Commit batches to a state without end.

    The file of records is the log, of lines `txid attempt`. Each attempt adds one to its own key, so what a lost attempt wrote
    would be seen.
    """
    log, done = Log(), records_in(records)
    for each in done:
        log.record(Txid(*each, incarnation=log.incarnation))
    with records.open("a") as out:
        for number in count(len(done) + 1):
            txid = log.txid(number, attempt)
            state.begin_commit(txid)
            update(state, {"all": 1, f"attempt {attempt}": 1, f"w{number % 5}": 1})
            state.commit(txid)
            out.write(f"{number} {attempt}\n")
            out.flush()
            os.fsync(out.fileno())
            log.record(txid)
