"""Every way to read compares the store with the log and says what it found; beside a living writer none is alarmed."""

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import trident
from spouts import FeederBatchSpout
from states.delta import DeltaState
from states.memcached import MemcachedState
from states.redis import RedisState
from tests.harness.commands import until
from tests.harness.drpc_functions import words
from tests.harness.topology_runs import dict_state, start
from trident import TridentTopology
from trident.drpc import LocalDRPC
from trident.errors import BatchFailedError, DRPCExecutionException, StateLossDetected, StateReadError
from trident.operations import Count, MapGet
from trident.read.state_reader import ForeignLog, StateReader
from trident.state import StateSpec

pytestmark = pytest.mark.slow

FED = "word: string"


class Counts:
    """A word count whose batches are fed one by one, with a DRPC function and a query beside it, in `folder`."""

    def __init__(
        self, folder: Path, state: StateSpec | None = None, partitions: int = 1, before: "Counts | None" = None,
        entries: dict[Any, Any] | None = None,
    ) -> None:  # fmt: skip
        self.entries = entries
        self.folder, self.table = folder, folder / "table"
        self.answered: dict[Any, Any] = {} if before is None else before.answered
        self.spout = FeederBatchSpout(FED)
        self.asked = FeederBatchSpout(FED)
        self.topology = TridentTopology("word-count")
        each = self.topology.new_stream("words", self.spout).group_by("word")
        spec = DeltaState.opaque(str(self.table)) if state is None else state
        self.counts = each.persistent_aggregate(spec, Count(), "count").parallelism_hint(partitions)
        words(self.topology.new_drpc_stream("words"), self.counts)
        self.queried = self.topology.new_stream("asked", self.asked).state_query(self.counts, "word", MapGet(), "n")
        self.queried.group_by("word").persistent_aggregate(dict_state(self.answered), Count(), "answered")

    @property
    def log_dir(self) -> str:
        return str(self.folder / "log")

    def empty(self, writers: list[Any]) -> None:
        """Empty the store behind the topology's back."""
        if self.entries:
            self.entries.clear()
        else:
            for writer in writers:
                with suppress(StateLossDetected):  # the one before may have emptied what they share
                    writer.read_sentinel()
                writer.reset()

    @contextmanager
    def running(self, **conf: Any) -> Iterator[Any]:
        with start(self.topology, "in_process", log_dir=self.log_dir, **conf) as running:
            yield running

    def feed(self, running: Any, *texts: str) -> None:
        for text in texts:
            self.spout.feed([(word,) for word in text.split()])
            running.process_all_available()


@pytest.fixture
def counts(tmp_path: Path) -> Counts:
    """Three batches, and beside the table a copy of it as it was after two."""
    counts = Counts(tmp_path)
    with counts.running() as running:
        counts.feed(running, "the cow", "the moon")
        shutil.copytree(counts.table, tmp_path / "older")
        counts.feed(running, "the man")
    return counts


def moved_away(counts: Counts) -> None:
    counts.table.rename(counts.folder / "elsewhere")


def an_older_copy(counts: Counts) -> None:
    shutil.rmtree(counts.table)
    shutil.copytree(counts.folder / "older", counts.table)


def another_log(counts: Counts) -> None:
    other = Counts(counts.folder / "other")
    with other.running() as running:
        other.feed(running, "a", "b", "c")
    shutil.rmtree(counts.table)
    other.table.rename(counts.table)


SWAPS: dict[str, tuple[Callable[[Counts], None], str]] = {
    "moved away": (moved_away, "the store has no commit at all: it was emptied or moved away"),
    "an older copy": (an_older_copy, "the store has batch 2 attempt .*: it is an older copy"),
    "another log's": (another_log, "it belongs to another log"),
}
READS: dict[str, Callable[[StateReader], Any]] = {
    "multi_get": lambda state: state.multi_get(["the", "cow"]),
    "get_tuples": lambda state: list(state.get_tuples()),
    "at": lambda state: state.at(3).multi_get(["the"]),
    "to_dataframe": lambda state: state.to_dataframe(None),  # type: ignore[arg-type]  # it is not asked so far
}


@pytest.mark.parametrize("swap", SWAPS)
def test_another_process_is_told_what_became_of_the_store(swap: str, counts: Counts) -> None:
    change, said = SWAPS[swap]
    with trident.open_state(counts.topology, counts.counts, log_dir=counts.log_dir) as before:
        assert before.multi_get(["the"]) == [3]
    change(counts)
    for name, read in READS.items():
        with trident.open_state(counts.topology, "count", log_dir=counts.log_dir) as state:
            with pytest.raises(StateReadError, match=f"partition 0 of state 'count' cannot be read: .*{said}"):
                read(state)
            assert name
    with LocalDRPC(counts.topology, log_dir=counts.log_dir) as drpc, pytest.raises(DRPCExecutionException, match=said):
        drpc.execute("words", "the cow")


def told(read: Callable[[], Any]) -> str:
    """What a reader says in the end: it does not compare the same snapshot again at once."""
    found: list[str] = []

    def fails() -> bool:
        try:
            read()
        except (StateReadError, DRPCExecutionException) as error:
            found.append(str(error))
        return bool(found)

    until(fails, "the reader finds it")
    return found[0]


@pytest.mark.sample(1)
@pytest.mark.parametrize("swap", SWAPS)
def test_readers_that_are_open_find_what_becomes_of_the_store(swap: str, counts: Counts) -> None:
    change, said = SWAPS[swap]
    with (
        counts.running() as running,
        trident.open_state(counts.topology, "count", log_dir=counts.log_dir) as other,
        LocalDRPC(counts.topology, log_dir=counts.log_dir) as drpc,
    ):
        reads: list[Callable[[], Any]] = [
            lambda: running.state("count").multi_get(["the"]),
            lambda: other.multi_get(["the"]),
            lambda: running.drpc("words").execute("the"),
            lambda: drpc.execute("words", "the"),
        ]
        assert [read() for read in reads] == [[3], [3], [[3]], [[3]]]
        change(counts)
        for read in reads:
            assert re.search(said, told(read))


def test_a_query_of_a_batch_finds_what_became_of_the_store(counts: Counts) -> None:
    running = start(counts.topology, "in_process", log_dir=counts.log_dir, max_batch_attempts=1)
    moved_away(counts)
    counts.asked.feed_nowait([("the",)])
    with pytest.raises(BatchFailedError, match="emptied or moved away"):
        running.process_all_available()
    running.stop()


def test_a_look_at_the_sentinel_leaves_no_older_answers(counts: Counts) -> None:
    with counts.running() as running:
        view = running.state("count")
        assert view.multi_get(["the"]) == [3]
        counts.feed(running, "the")
        view.compare()
        assert view.multi_get(["the"]) == [4]


def test_a_reader_writes_nothing(counts: Counts) -> None:
    before = {path: path.stat().st_mtime_ns for path in counts.folder.rglob("*")}
    with trident.open_state(counts.topology, "count", log_dir=counts.log_dir) as state:
        assert state.multi_get(["the", "cow", "sow"]) == [3, 1, None]
        assert (state.txid, sorted(state.get_tuples())) == (3, [("cow", 1), ("man", 1), ("moon", 1), ("the", 3)])
        assert state.at(2).multi_get(["the"]) == [2]
    moved_away(counts)
    with trident.open_state(counts.topology, "count", log_dir=counts.log_dir) as state, pytest.raises(StateReadError):
        state.multi_get(["the"])
    assert not counts.table.exists()
    (counts.folder / "elsewhere").rename(counts.table)
    after = {path: path.stat().st_mtime_ns for path in counts.folder.rglob("*")}
    assert after.items() >= before.items() - {(counts.folder, before.get(counts.folder))}


@pytest.mark.parametrize(
    ("prefix", "limit", "rows"),
    [
        (None, None, [("cow", 1), ("man", 1), ("moon", 1), ("the", 3)]),
        ("m", None, [("man", 1), ("moon", 1)]),
        (("moon",), None, [("moon", 1)]),
        ("x", 3, []),
        ("m", 0, []),
    ],
)
def test_a_listing_is_of_the_keys_that_are_asked_for(prefix: Any, limit: int | None, rows: Any, counts: Counts) -> None:
    with trident.open_state(counts.topology, "count", log_dir=counts.log_dir) as state:
        assert sorted(state.get_tuples(prefix, limit)) == rows
        assert len(list(state.get_tuples("m", 1))) == 1


def test_a_restart_with_other_partitions_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries: dict[Any, Any] = {}
    counts = Counts(tmp_path, dict_state(entries), entries=entries)
    closed: list[ForeignLog] = []
    monkeypatch.setattr(ForeignLog, "close", lambda log: closed.append(log))
    with counts.running() as running:
        counts.feed(running, "the cow")
    with trident.open_state(counts.topology, "count", log_dir=counts.log_dir) as state:
        assert state.multi_get(["the", "cow"]) == [1, 1]
        wider = Counts(tmp_path, dict_state(entries), partitions=3, before=counts, entries=entries)
        with wider.running(allow_changed_topology=True) as running:
            wider.feed(running, "the cow jumped over the moon")
        assert state.txid == 1
        assert state.multi_get(["the", "cow", "moon"]) == [3, 2, 1]
        assert (len(state._parts.instances), closed) == (3, [])  # the log is still followed
    assert len(closed) == 1


ON_SERVERS = [pytest.param(name, marks=pytest.mark.server) for name in ("redis", "memcached")]


@pytest.fixture(params=["delta", "two methods", *ON_SERVERS])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Counts:
    if request.param in ("delta", "two methods"):
        entries: dict[Any, Any] = {}
        spec = DeltaState.opaque(tmp_path / "table") if request.param == "delta" else dict_state(entries)
        return Counts(tmp_path, spec, partitions=2, entries=entries)
    port = request.getfixturevalue(f"{request.param}_server").port
    if request.param == "redis":
        spec = RedisState.opaque(f"redis://127.0.0.1:{port}/0", prefix=tmp_path.name)
    else:
        spec = MemcachedState.opaque(f"127.0.0.1:{port}", prefix=tmp_path.name)
    return Counts(tmp_path, spec, partitions=2)


def test_each_store_says_what_became_of_it(stored: Counts) -> None:
    with stored.running() as running:
        stored.feed(running, "the cow jumped", "the cow jumped")
        with trident.open_state(stored.topology, "count", log_dir=stored.log_dir) as state:
            assert state.multi_get(["the", "cow"]) == [2, 2]
            writers = running.opened.states["count"]
            laid = next(found for writer in writers if (found := writer.read_sentinel()))
            changes = {
                "whose last writes are missing: the end of that batch was lost": laid._replace(sealed=False),
                "it is an older copy": laid._replace(txid=1),
                "it belongs to another log": laid._replace(incarnation="other"),
            }
            for said, sentinel in changes.items():
                for writer in writers:
                    writer.read_sentinel()
                    writer.move_sentinel(sentinel, force=True)
                assert said in told(lambda: state.multi_get(["the", "cow"]))
            stored.empty(writers)
            assert "it was emptied or moved away" in told(lambda: state.multi_get(["the", "cow"]))


@pytest.mark.long
def test_no_reader_is_alarmed_by_a_writer_that_lives(stored: Counts) -> None:
    counts = stored
    ended = threading.Event()

    def read(reader: Any) -> int:
        seen = [0]
        while not ended.is_set():
            values = reader(["the", "cow"])
            assert values[0] == values[1]
            seen.append(values[0] or 0)
        assert seen == sorted(seen)
        return len(seen)

    with ThreadPoolExecutor(3) as threads, ExitStack() as stack:
        running = stack.enter_context(counts.running(max_spout_pending=2))
        counts.feed(running, "the cow")
        other = stack.enter_context(trident.open_state(counts.topology, "count", log_dir=counts.log_dir))
        stack.callback(ended.set)
        readers = [threads.submit(read, reader) for reader in (other.multi_get, running.state("count").multi_get)]
        for _ in range(40):
            counts.spout.feed_nowait([("the",), ("cow",)])
        running.process_all_available()
        ended.set()
        assert all(reader.result() > 1 for reader in readers)
        assert other.multi_get(["the", "cow"]) == [41, 41]
