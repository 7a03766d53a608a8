"""Worlds in which a log or a store is lost, set back or another's: what a start says, and how each way on ends."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spouts import FixedBatchSpout, TextFileSpout
from tests.harness.sqlite_map import sqlite_state
from tests.harness.topology_runs import start
from trident import Fields, TridentTopology
from trident.errors import RewindError, StartMismatchError
from trident.operations import Count
from trident.spout import IPartitionedTridentSpout, OutputFieldsDeclarer, PartitionCollector, TransactionAttempt

POLICIES = ("rewind", "keep_totals", "discard_totals", "new log and discard_totals")


# ---- sources -----------------------------------------------------------------------------------------------------------


class Source(ABC):
    """Has `rows` rows, each the word "a" and a batch of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows = folder, 0

    def add(self) -> None:
        self.rows += 1

    def drop(self) -> None:
        self.rows -= 1

    @abstractmethod
    def spout(self) -> Any:
        """Return what a topology reads."""


class Files(Source):
    def add(self) -> None:
        super().add()
        self._file.parent.mkdir(exist_ok=True)
        self._file.write_text("a\n")

    def drop(self) -> None:
        self._file.unlink()
        super().drop()

    def spout(self) -> Any:
        return TextFileSpout(str(self._file.parent), output_field="w", max_batch_bytes=1)

    @property
    def _file(self) -> Path:
        return self.folder / "in" / f"{self.rows:03}"


class Rows(Source):
    def spout(self) -> Any:
        return FixedBatchSpout("w: string", 1, *[["a"]] * self.rows)


class Partition(Source):
    def spout(self) -> Any:
        return _Partitioned(self.rows)


class _Partitioned(IPartitionedTridentSpout):
    """One partition; its metadata is the number of rows that were read."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def get_output_fields(self) -> Fields:
        return Fields("w: string")

    def get_coordinator(self, conf: Mapping[str, Any]) -> Any:
        return self

    def get_emitter(self, conf: Mapping[str, Any]) -> Any:
        return self

    def get_partitions_for_batch(self) -> Sequence[str]:
        return ["all"]

    def emit_partition_batch_new(
        self, attempt: TransactionAttempt, collector: PartitionCollector, partition: str, last_metadata: Any | None
    ) -> Any:
        read = last_metadata or 0
        if read == self.rows:
            return last_metadata
        collector.emit(["a"])
        return read + 1

    def emit_partition_batch(
        self, attempt: TransactionAttempt, collector: PartitionCollector, partition: str, metadata: Any
    ) -> None:
        collector.emit(["a"])


class Queue(Source):
    """A queue in a file, which forgets what was acknowledged. It is a spout of single tuples itself."""

    max_batch_size, on_new_log = 1, "behind"

    def add(self) -> None:
        super().add()
        self._write([*self._messages(), self.rows])

    def spout(self) -> Any:
        return self

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("w: string")

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self._collector, self._waiting = collector, self._messages()

    def next_tuple(self) -> None:
        if self._waiting:
            self._collector.emit(["a"], self._waiting.pop(0))

    def ack(self, msg_id: int) -> None:
        self._write([each for each in self._messages() if each != msg_id])

    def fail(self, msg_id: int) -> None:
        self._waiting.append(msg_id)

    def close(self) -> None: ...

    def _messages(self) -> list[int]:
        file = self.folder / "queue"
        return list(json.loads(file.read_text())) if file.exists() else []

    def _write(self, messages: Sequence[int]) -> None:
        (self.folder / "queue").write_text(json.dumps(messages))


SOURCES: tuple[type[Source], ...] = (Files, Rows, Partition, Queue)


# ---- a world, and what happens to it -----------------------------------------------------------------------------------


class World:
    """Counts the rows of a source in one state or two, each in a file of its own beside the log."""

    def __init__(self, folder: Path, source: type[Source], states: int, history: str | None) -> None:
        self.folder, self.names, self._history = folder, "ab"[:states], history
        folder.mkdir()
        self.source = source(folder)

    def run(self, rows: int, log: str = "log", **conf: Any) -> dict[str, int]:
        """Add so many rows, run until all are counted, return the totals."""
        for _ in range(rows):
            self.source.add()
        topology = TridentTopology("t")
        stream = topology.new_stream("s", self.source.spout()).group_by("w")
        for name in self.names:
            stream.persistent_aggregate(sqlite_state(str(self.folder / name)), Count(), "n", state_name=name)
        # A queue of single tuples is exact only as long as no batch fails: none does here.
        settings = {"log_dir": str(self.folder / log), "history": self._history, "allow_inexact": True, **conf}
        with start(topology, "in_process", **settings) as running:
            running.process_all_available()
            return {name: running.state(name).multi_get(["a"])[0] or 0 for name in self.names}

    def copy(self, *names: str) -> Callable[[], None]:
        """Copy files and folders, whole if no name is given; return what brings them back."""
        copies = Path(tempfile.mkdtemp(dir=self.folder.parent))
        for path in self.folder.iterdir():
            if not names or path.name in names:
                _copy(path, copies / path.name)

        def restore() -> None:
            self.lose(*names)
            for path in copies.iterdir():
                _copy(path, self.folder / path.name)

        return restore

    def lose(self, *names: str) -> None:
        """Remove files and folders, all if no name is given; with a database the files beside it."""
        for path in list(self.folder.iterdir()):
            if not names or path.name.partition("-")[0] in names:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _copy(path: Path, to: Path) -> None:
    (shutil.copytree if path.is_dir() else shutil.copyfile)(path, to)


Older = Mapping[str, Callable[[], None]]
"""By what it is of, what brings back a copy from after batch 2."""


def _give_another(world: World, older: Older) -> None:
    other = World(Path(tempfile.mkdtemp(dir=world.folder.parent)) / "another", Rows, len(world.names), None)
    other.run(3)
    world.lose("a")
    _copy(other.folder / "a", world.folder / "a")


def _set_back_and_empty(world: World, older: Older) -> None:
    older["log"]()
    world.lose("a")


ACCIDENTS: dict[str, Callable[[World, Older], None]] = {
    "log lost": lambda world, older: world.lose("log"),
    "log set back": lambda world, older: older["log"](),
    "store set back": lambda world, older: older["a"](),
    "store emptied": lambda world, older: world.lose("a"),
    "store of another log": _give_another,
    "log set back, store emptied": _set_back_and_empty,
    "log lost, store emptied": lambda world, older: world.lose("log", "a"),
}


def prepared(
    folder: Path, accident: str, source: type[Source], states: int, history: str | None
) -> Callable[[], World]:
    """Count four rows, and let an accident happen to the log, or to state a; return what makes this very world, each time."""
    world = World(folder / "world", source, states, history)
    world.run(2)
    older = {name: world.copy(name) for name in ("log", "a")}
    world.run(2)
    ACCIDENTS[accident](world, older)
    again, rows = world.copy(), world.source.rows

    def make() -> World:
        again()
        world.source.rows = rows
        return world

    return make


def outcome(world: World, policy: str) -> str | dict[str, int]:
    """Start once with a policy and a row more: the totals, or the text of the error if it is refused."""
    new, _, name = policy.rpartition(" and ")
    try:
        return world.run(1, "another-log" if new else "log", state_recovery=name)
    except (StartMismatchError, RewindError) as error:
        return str(error)


def advised(printed: str) -> str:
    """Return the one policy that an error advises, "" if it advises none."""
    (advice,) = [line for line in printed.splitlines() if line.startswith("What to do: ")]
    names = re.findall(r'(a new log_dir and )?state_recovery="(\w+)" \(--state-recovery (\w+)\)', advice)
    assert len(names) == advice.count("state_recovery") <= 1
    assert all(name == on_command_line for _, name, on_command_line in names)
    return "".join(f"{'new log and ' if new else ''}{name}" for new, name, _ in names)
