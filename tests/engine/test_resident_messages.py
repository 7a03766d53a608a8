"""What resident workers hold for a stage: complete, late, too much, cut off; and a worker whose driver is silent."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.engine.forked_workers import forked_workers
from tests.harness.commands import until
from tests.harness.proxy import BUFFER, Passing, Pump
from tests.harness.topology_runs import start
from trident import TridentTopology
from trident.arrow import ipc_of
from trident.engine import resident_runner, resident_worker
from trident.engine.resident_runner import ResidentRunner
from trident.engine.resident_worker import Boxes, ResidentWorker, Rows
from trident.engine.routing import RowFrame
from trident.operations import Count
from trident.spark import mailbox, worker_group
from trident.spark.mailbox import Keys, Mailbox, PeerAway
from trident.spark.worker_group import Letter, WorkerTicket
from trident.steps.failures import StepFailed

TABLE = pa.table({"n": pa.array(range(100), pa.int64())})


def frame(data: Any, partition: int = 0) -> RowFrame:
    return RowFrame("exchange", 0, partition, ("numbers", 0, 0), data)


def test_a_stage_waits_until_all_messages_of_all_senders_are_there() -> None:
    boxes, done = Boxes(), threading.Event()
    boxes.begin(1)

    def wait() -> None:
        boxes.wait(1, {0: 1, 1: 2}, 30)
        done.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    for sender in (1, 0):
        boxes.add(Rows(1, sender, [frame(ipc_of(TABLE))]))
        assert not done.is_set()
    boxes.add(Rows(1, 1, [frame(TABLE), frame(TABLE, 1)]))
    waiting.join(30)
    assert done.is_set()
    assert [each.data for each in boxes.take(1, "exchange", 0)] == [TABLE] * 3
    assert [each.data for each in boxes.take(1, "exchange", 1)] == [TABLE]
    assert boxes.take(1, "exchange", 0) == []


def test_rows_that_never_come_fail_the_attempt_and_name_their_sender() -> None:
    boxes = Boxes()
    boxes.add(Rows(1, 0, [frame(TABLE)]))
    with pytest.raises(StepFailed, match="rows of worker 1 have not arrived within 0.01 s"):
        boxes.wait(1, {0: 1, 1: 1}, 0.01)


def test_a_worker_that_is_to_end_does_not_go_on_without_the_rows_that_it_waits_for() -> None:
    boxes, failed = Boxes(), threading.Event()
    boxes.add(Rows(1, 0, [frame(TABLE)]))

    def wait() -> None:
        with pytest.raises(StepFailed, match="rows of worker 1 have not arrived"):
            boxes.wait(1, {0: 1, 1: 1}, 30)
        failed.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    boxes.close()
    waiting.join(30)
    assert failed.is_set()


def test_what_is_late_is_dropped() -> None:
    boxes = Boxes()
    boxes.begin(1)
    boxes.begin(2)
    boxes.end(1)
    boxes.add(Rows(1, 0, [frame(TABLE)]))
    assert not boxes.is_live(1)
    with pytest.raises(StepFailed, match="the attempt has ended"):
        boxes.take(1, "exchange", 0)
    boxes.add(Rows(3, 0, [frame(TABLE)]))
    boxes.keep(frozenset(), newest=2)  # the driver knows none of them, and does not know of the third yet
    assert [boxes.is_live(number) for number in (1, 2, 3)] == [False, False, True]
    with pytest.raises(StepFailed, match="rows have not arrived"):
        boxes.wait(2, {0: 1}, 0.01)


def test_rows_beyond_memory_wait_on_disk_and_beyond_the_bound_end_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident_worker, "_IN_MEMORY", 1_000)
    monkeypatch.setattr(resident_worker, "_MOST_WAITING", 10_000)
    boxes = Boxes()
    for data in (TABLE, ipc_of(TABLE), TABLE, ipc_of(TABLE)):
        boxes.add(Rows(1, 0, [frame(data)]))
    boxes.wait(1, {0: 4}, 0.01)
    assert [each.data for each in boxes.take(1, "exchange", 0)] == [TABLE] * 4
    for _ in range(20):
        boxes.add(Rows(2, 0, [frame(TABLE)]))
    with pytest.raises(
        StepFailed, match='sent 16000 bytes of one batch, and holds at most 10000. Use .*workers="jobs"'
    ) as e:
        boxes.wait(2, {0: 20}, 0.01)
    assert not e.value.failure.retry
    assert boxes.take(2, "exchange", 0) == []


@pytest.mark.parametrize("how", ["silent", "gone"])
def test_a_worker_ends_when_its_driver_is(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "_AWAY_S", 0.2)
    keys, came = Keys.new(), threading.Event()

    def take(message: Any) -> None:
        assert isinstance(message, Letter)
        came.set()

    driver = Mailbox(keys, "127.0.0.1", "127.0.0.1", take, lambda: None, 0.1)
    driver.open()
    monkeypatch.setattr(worker_group, "own_address", lambda address, wait_s: "127.0.0.1")
    silence_s = 0.2 if how == "silent" else 120.0
    worker = ResidentWorker(WorkerTicket("t", 0, driver.address, keys, silence_s, None, "p", cloudpickle.dumps(None)))
    running = threading.Thread(target=worker.run, daemon=True)
    running.start()
    assert came.wait(30)
    if how == "gone":
        driver.close()
    running.join(30)
    assert not running.is_alive()
    worker.close()
    if how == "silent":
        driver.close()


def test_who_does_not_have_the_keys_of_a_pool_is_not_heard() -> None:
    keys, heard = Keys.new(), list[str]()
    own = Mailbox(keys, "127.0.0.1", "127.0.0.1", heard.append, lambda: None, 0.01)
    own.open()
    stranger = Mailbox(Keys.new(), "127.0.0.1", "127.0.0.1", heard.append, lambda: None, 0.01)
    stranger.open()
    other = Mailbox(keys, "127.0.0.1", "127.0.0.1", heard.append, lambda: None, 0.01)
    other.open()
    stranger.peer(own.address).send("strange")
    friend = other.peer(own.address)
    friend.send("known")
    until(lambda: bool(heard), "a message has come")
    assert heard == ["known"]
    friend.close()
    with pytest.raises(PeerAway, match=own.address):
        friend.send("late")
    for each in (own, stranger, other):
        each.close()


ROWS = 40


class Link(Passing):
    """Passes bytes on; of those that come while it is cut, once it is mended."""

    def __init__(self, port: int) -> None:
        self.whole, self.passed = threading.Event(), 0
        self.whole.set()
        super().__init__(port)

    def _pumps(self, client: socket.socket, server: socket.socket) -> tuple[Pump, Pump]:
        return partial(self._pump, client, server), partial(self._pump, server, client)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(BUFFER):
            self.whole.wait()
            self.passed += len(data)
            target.sendall(data)


class Links:
    """A link before each worker, for the other workers; the driver has connections of its own."""

    def __init__(self) -> None:
        self._ends, self.by_address = ExitStack(), dict[str, Link]()

    def behind(self, address: str) -> str:
        if address not in self.by_address:
            self.by_address[address] = Link(int(address.rpartition(":")[2]))
            self._ends.callback(self.by_address[address].close)
        return f"127.0.0.1:{self.by_address[address].port}"

    def cut(self) -> None:
        for link in self.by_address.values():
            link.whole.clear()

    def mend(self) -> None:
        for link in self.by_address.values():
            link.whole.set()

    def close(self) -> None:
        self.mend()
        self._ends.close()


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Iterator[Links]:
    """Have workers send rows to each other through links."""
    found = Links()
    through = ResidentRunner._through

    def linked(runner: ResidentRunner, run: Any, *rest: Any) -> Any:
        for member in run.crew.values():
            if not hasattr(member.peer, "linked"):  # it is connected already: this is the address that others are told
                member.peer.linked = member.peer.address = found.behind(member.peer.address)
        return through(runner, run, *rest)

    monkeypatch.setattr(ResidentRunner, "_through", linked)
    yield found
    found.close()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_rows_that_a_cut_withholds_fail_the_attempt_and_none_is_lost(
    links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_runner, "_PATIENCE_S", 300.0)  # the first batch waits for both workers
    topology = TridentTopology("cut")
    numbers = topology.new_stream("numbers", FixedBatchSpout("n: int", 4, *[(n,) for n in range(ROWS)]))
    crossing = numbers.shuffle().filter("n", lambda n: n >= 0).parallelism_hint(2)
    counts = crossing.group_by("n").persistent_aggregate(MemoryMapState.opaque(), Count(), "count")
    cut = threading.Event()

    def observe(point: str, attempt: Any) -> None:
        if (point, attempt.txid) == ("recorded", 3):
            links.cut()
            cut.set()

    settings: dict[str, Any] = {"workers": "resident", "max_spout_pending": 1, "max_batch_attempts": 20}
    with forked_workers(), start(topology, "spark", observe, **settings) as running:
        assert cut.wait(300), "three batches are not recorded"
        until(lambda: running.status["failures"], "an attempt has failed whose rows were cut off")
        assert "rows of worker" in running.status["lastFailure"]
        links.mend()
        running.process_all_available()
        assert running.state(counts).multi_get([(n,) for n in range(ROWS)]) == [1] * ROWS
    assert sum(link.passed for link in links.by_address.values()) > 0
