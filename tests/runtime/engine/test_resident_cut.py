"""The network between two resident workers is cut, while the driver reaches both."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.commands import until
from tests.harness.proxy import BUFFER, Passing, Pump
from tests.harness.topology_runs import start
from tests.runtime.engine.forked_workers import forked_workers
from trident import TridentTopology
from trident.operations import Count
from trident.runtime.engine import resident_runner
from trident.runtime.engine.resident_runner import ResidentRunner

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

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
        """Return the address of the link to a worker."""
        if address not in self.by_address:
            self.by_address[address] = Link(int(address.rpartition(":")[2]))
            self._ends.callback(self.by_address[address].close)
        return f"127.0.0.1:{self.by_address[address].port}"

    def cut(self) -> None:
        """Let nothing pass."""
        for link in self.by_address.values():
            link.whole.clear()

    def mend(self) -> None:
        """Let all pass again."""
        for link in self.by_address.values():
            link.whole.set()

    def close(self) -> None:
        """End all links."""
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


def test_rows_that_a_cut_keeps_from_another_worker_fail_the_attempt_and_none_is_lost(
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
