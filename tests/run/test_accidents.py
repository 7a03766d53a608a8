"""Each accident, each kind of source, one or two states: what is printed, and how each way on ends."""

import itertools
import json
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from spouts import (
    DeltaSpout,
    FeederBatchSpout,
    FixedBatchSpout,
    KafkaSpout,
    OpaqueTridentKafkaSpout,
    RedisStreamRichSpout,
    TextFileSpout,
    TransactionalRedisStreamSpout,
)
from states.delta import DeltaState
from tests.harness.kafka_topics import Topics
from tests.harness.sqlite_map import sqlite_state
from tests.harness.topology_runs import Keep, RowsState, dict_state, run_all, start
from tests.replay.set_back import Stores
from tests.run.random_declarations import TransactionalParts
from trident import QueryBatches, TopologyError, TridentTopology, open_state
from trident.errors import RewindError, StartMismatchError, UnsupportedOperation
from trident.operations import Count
from trident.spout import OutputFieldsDeclarer, SaysWhereItBegins, TransactionAttempt

POLICIES = ("rewind", "keep_totals", "discard_totals", "new log and discard_totals")


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
        return TransactionalParts("w: string", {row: [("a",)] for row in range(1, self.rows + 1)}, self.rows, 1)


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


SAID = {
    "log lost": r"the log is new, and state 'a' has the totals of 4 batches",
    "log set back": r"the log was set back: it ends with batch 2 of \d{4}-.* UTC, and state 'a' has 2 batches more",
    "store set back": r"the store of state 'a' was set back by 2 batches: it lacks batch 3 of \d{4}-.* UTC up to batch 4 of ",
    "store emptied": r"the store of state 'a' was emptied, and the log has written to it up to batch 4 of \d{4}-.* UTC",
    "store of another log": r"the store of state 'a' is of another log: it has batch 3 of that, and this one ends with batch 4",
    "log set back, store emptied": r"the store of state 'a' was emptied, and the log has written to it up to batch 2 of ",
    "log lost, store emptied": r"the log is new, and state 'b' has the totals of 4 batches.*; state 'a' has none",
}


def promised(world: World, accident: str, policy: str) -> dict[str, int]:
    """Return the totals that a policy promises by its name: of all rows, or of those since a state was emptied."""
    if not policy.endswith("discard_totals"):
        return dict.fromkeys(world.names, 5)
    is_new = policy.startswith("new log") or accident.startswith("log lost")
    since = 1 if isinstance(world.source, Queue) else 5 if is_new else 3 if accident.startswith("log set back") else 1
    emptied = world.names if is_new or accident.startswith("log") else "a"
    return {name: since if name in emptied else 5 for name in world.names}


def best(accident: str, source: Any, states: int, history: str | None) -> str:
    """Return the way on that makes the totals right; "" if nothing does but the copies that belong together."""
    if source is Queue:
        return "keep_totals" if accident in ("log lost", "log set back") else ""
    is_behind = accident in ("store set back", "store emptied") or (
        accident == "log set back, store emptied" and states == 1
    )
    if is_behind and history is not None:
        return "rewind"
    return "discard_totals" if accident.startswith("log lost") else "new log and discard_totals"


CASES = [
    (accident, source, states, history)
    for accident, source, states, history in itertools.product(ACCIDENTS, SOURCES, (1, 2), (None, "7d"))
    if accident != "log lost, store emptied" or states == 2  # else nothing is left that could be wrong
]


@pytest.mark.slow
@pytest.mark.sample(12)
@pytest.mark.parametrize(("accident", "source", "states", "history"), CASES)
def test_what_is_advised_ends_with_right_totals_and_what_would_not_is_refused(
    accident: str, source: Any, states: int, history: str | None, tmp_path: Path
) -> None:
    make = prepared(tmp_path, accident, source, states, history)
    printed = outcome(make(), "refuse")
    assert isinstance(printed, str)
    assert re.search(SAID[accident], printed.splitlines()[0])
    advice = advised(printed)
    for policy in POLICIES:
        found = outcome(make(), policy)
        if isinstance(found, str):
            assert policy in ("rewind", "keep_totals"), found
            assert policy != advice
        else:
            assert found == promised(make(), accident, policy), policy
            assert policy != advice or set(found.values()) == {5}
    assert advice == best(accident, source, states, history)


def test_totals_that_a_source_would_count_again_are_kept_only_by_a_name_that_says_so(tmp_path: Path) -> None:
    make = prepared(tmp_path, "log lost", Files, 1, None)
    with pytest.raises(StartMismatchError) as refused:
        make().run(0, state_recovery="keep_totals")
    said, why, what, numbers = str(refused.value).splitlines()
    assert said.endswith("the log was lost, or log_dir names another one. Nothing was written.")
    assert why == (
        "state_recovery=\"keep_totals\" is refused: stream 's' would begin at its start, and count again what the totals hold."
    )
    assert what.startswith(
        "What to do: start with the log that belongs to the store (log_dir). If there is none, once with "
    )
    assert numbers.startswith("For experts: partition 0 of state 'a': the log expects no commit of incarnation ")
    assert make().run(0, state_recovery="keep_totals_even_if_wrong") == {"a": 8}


def test_totals_are_not_kept_beside_a_state_that_lost_its_own(tmp_path: Path) -> None:
    make = prepared(tmp_path, "log lost, store emptied", Queue, 2, None)
    with pytest.raises(StartMismatchError, match="is refused: state 'a' has none, as after a loss"):
        make().run(0, state_recovery="keep_totals")


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
def test_a_log_that_lacks_only_the_last_batch_is_refused_or_harmless(kind: str, tmp_path: Path) -> None:
    rows, log, older = tmp_path / "rows", tmp_path / "log", tmp_path / "older"

    def run(log_dir: Path = log, most: int = 100, observer: Any = None, **conf: Any) -> list[Any]:
        spout = TextFileSpout(str(rows), output_field="w", max_batch_bytes=most)
        topology = TridentTopology("t")
        words = topology.new_stream("s", spout).group_by("w")
        words.persistent_aggregate(sqlite_state(str(tmp_path / "store"), kind), Count(), "n", state_name="count")
        with start(topology, "in_process", observer, log_dir=str(log_dir), **conf) as running:
            running.process_all_available()
            return list(running.state("count").multi_get(["a"]))

    def copy(step: str, attempt: TransactionAttempt) -> None:
        if step == "succeeded" and attempt.txid == 1:
            shutil.copytree(log, older)

    rows.mkdir()
    for name in "12":
        (rows / name).write_text("a\n")
    assert run(most=1, observer=copy, max_spout_pending=1) == [2]
    shutil.rmtree(log)
    older.rename(log)
    (rows / "3").write_text("a\n")
    if kind == "opaque":  # batch 2 is taken back, and has two rows now
        assert run() == [3]
        return
    with pytest.raises(
        StartMismatchError, match="set back: it ends with batch 1 of .*, and state 'count' has 1 batch more"
    ):
        run()
    assert run(tmp_path / "new", state_recovery="discard_totals") == [3]


def test_a_commit_that_is_not_whole_is_not_kept(tmp_path: Path) -> None:
    stores = Stores()

    def run(**conf: Any) -> None:
        topology = TridentTopology("t")
        topology.new_stream("s", feeder).persistent_aggregate(stores.state(), Count(), "n", state_name="count")
        run_all(topology, "in_process", log_dir=str(tmp_path / conf.pop("log", "new")), **conf)

    feeder = FeederBatchSpout("w: string")
    feeder.feed_nowait([["a"]])
    run(log="log")
    ((_, entries),) = [one for one in stores.entries.items() if one[0][0] == "count"]
    for key, value in entries.items():
        if key[0] == "\0trident-sentinel":
            entries[key] = value._replace(sealed=False)
    with pytest.raises(StartMismatchError, match="is refused: a store does not have the totals of all batches"):
        run(state_recovery="keep_totals")


def test_no_state_is_emptied_if_one_cannot_be(tmp_path: Path) -> None:
    stores, entries = Stores(), dict[Any, Any]()

    def run(log: str, **conf: Any) -> None:
        topology = TridentTopology("t")
        stream = topology.new_stream("s", FixedBatchSpout("w: string", 1, ["a"])).group_by("w")
        stream.persistent_aggregate(stores.state(), Count(), "n", state_name="a")
        stream.persistent_aggregate(dict_state(entries), Count(), "n", state_name="b")
        run_all(topology, "in_process", log_dir=str(tmp_path / log), **conf)

    run("log")
    before = stores.copy(), dict(entries)
    with pytest.raises(
        StartMismatchError, match="Nothing else makes the totals right, because state 'b' cannot be emptied"
    ):
        run("new")
    with pytest.raises(UnsupportedOperation, match=r"empty state 't/b': a DictMap has no reset\(\)"):
        run("new", state_recovery="discard_totals")
    assert (stores.copy(), entries) == before


def test_a_state_that_keeps_no_sentinel_is_to_be_emptied_by_its_owner(tmp_path: Path) -> None:
    class Kept(RowsState):
        in_memory = False

    def run(log: str, own: Kept, **conf: Any) -> None:
        topology = TridentTopology("t")
        stream = topology.new_stream("s", FixedBatchSpout("w: string", 1, ["a"]))
        stream.group_by("w").persistent_aggregate(sqlite_state(str(tmp_path / "db")), Count(), "n")
        stream.partition_persist(own, Keep(), stream.fields, state_name="own")
        run_all(topology, "in_process", log_dir=str(tmp_path / log), **conf)

    run("log", own := Kept())
    with pytest.raises(
        StartMismatchError, match="are emptied, but for 'own', which keeps no sentinel: empty it yourself, and"
    ):
        run("new", own)
    own.batches.clear()
    run("new", own, state_recovery="discard_totals")
    assert own.batches == {1: [("a",)]}


@pytest.mark.parametrize(
    ("spout", "begins"),
    [
        (FeederBatchSpout("w: string"), "behind"),
        (RedisStreamRichSpout("redis://localhost", "s", "w: string", group="g"), "behind"),
        (KafkaSpout("localhost:1", "t", group_id="g"), "behind"),
        (TransactionalRedisStreamSpout("redis://localhost", "s", "w: string"), "start"),
        (TransactionalRedisStreamSpout("redis://localhost", "s", "w: string", first="$"), "elsewhere"),
        (OpaqueTridentKafkaSpout("localhost:1", "t"), "start"),
        (OpaqueTridentKafkaSpout("localhost:1", "t", first_poll="latest"), "elsewhere"),
        (OpaqueTridentKafkaSpout("localhost:1", "t", first_poll="committed", group_id="g"), "elsewhere"),
        (DeltaSpout("table", "w: string"), "start"),
        (DeltaSpout("table", "w: string", starting_version="latest"), "elsewhere"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_a_spout_says_where_it_begins_when_the_log_is_new(spout: Any, begins: str) -> None:
    assert isinstance(spout, SaysWhereItBegins)
    assert spout.on_new_log == begins


@pytest.mark.long
def test_kafka_is_read_again_only_into_states_that_were_emptied(kafka_topics: Topics, tmp_path: Path) -> None:
    stores, topic = Stores(), kafka_topics.create()

    def run(log: str, first: Any = "earliest", **conf: Any) -> list[Any]:
        kafka_topics.produce(topic, [b"a"])
        topology = TridentTopology("t")
        spout = OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, value="text", group_id="g", first_poll=first)
        stream = topology.new_stream("s", spout).group_by("value")
        stream.persistent_aggregate(stores.state(), Count(), "n", state_name="count")
        running = run_all(topology, "in_process", log_dir=str(tmp_path / log), **conf)
        return list(running.state("count").multi_get(["a"]))

    assert run("log") == [1]
    for first, why in (
        ("earliest", "would begin at its start, and count again"),
        ("committed", "does not begin where the totals end"),
        ("latest", "does not begin where the totals end"),
    ):
        with pytest.raises(StartMismatchError, match=f"stream 's' {why}"):
            run("new", first, state_recovery="keep_totals")
    assert run("new", state_recovery="discard_totals") == [5]


def test_a_topology_of_a_query_is_refused_before_its_totals_are_discarded(tmp_path: Path) -> None:
    def declared(spout: Any) -> TridentTopology:
        topology = TridentTopology("t")
        words = topology.new_stream("words", spout).group_by("word")
        words.persistent_aggregate(DeltaState(str(tmp_path / "table")), Count(), "count")
        return topology

    kept = declared(FixedBatchSpout("word: string", 1, ["the"]))
    with kept.start(engine="in_process", log_dir=tmp_path / "log") as running:
        running.process_all_available()
    of_query: dict[str, Any] = {"log_dir": tmp_path / "other", "state_recovery": "discard_totals"}
    said = "stream 'words' gets its batches from a query, so the topology is not started(?s:.)*topology.foreach_batch"
    with pytest.raises(TopologyError, match=said):
        declared(QueryBatches("word: string")).start(engine="in_process", **of_query)
    assert not (tmp_path / "other").exists()
    with open_state(kept, "count", log_dir=tmp_path / "log") as state:
        assert state.multi_get(["the"]) == [1]
