"""What a topology opens is complete or closed: whatever fails while it is opened, and in one order at the end."""

from typing import Any

import pytest

from tests.harness.topology_runs import Keep, OneSpout
from trident import Config, TridentTopology
from trident.errors import ConfigError
from trident.log.log_interface import MemoryLog
from trident.operations import BaseFunction
from trident.plan import make_plan
from trident.run import opened_topology as module
from trident.run.opened_topology import Closers, OpenedTopology

calls: list[str] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


class State:
    """Says when each of its partitions is opened and closed."""

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Any:
        if partition_index == 2:
            raise ConfigError("no third partition")
        calls.append(f"open state {partition_index}")
        opened = State()
        opened.close = lambda: calls.append(f"close state {partition_index}")  # type: ignore[attr-defined]
        return opened

    def begin_commit(self, txid: int) -> None: ...
    def commit(self, txid: int) -> None: ...


class Spout(OneSpout):
    """Says when it is opened and closed."""

    def get_coordinator(self, conf: Any) -> Any:
        calls.append("open spout")
        return self

    def close(self) -> None:
        calls.append("close spout")


class Prepared(BaseFunction):
    """Says when it is prepared and cleaned up."""

    output_types = ("string",)

    def prepare(self, conf: Any, context: Any) -> None:
        calls.append("prepare")

    def execute(self, tuple: Any, collector: Any) -> None: ...
    def cleanup(self) -> None:
        calls.append("clean up")


class Log(MemoryLog):
    def close(self) -> None:
        calls.append("close log")
        super().close()


def open_one(partitions: int = 2) -> OpenedTopology:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", Spout()).each("x", Prepared(), "y")
    stream.partition_persist(State(), Keep(), "z: string", state_name="rows").parallelism_hint(partitions)
    graph = topology.graph()
    return OpenedTopology(graph, make_plan(graph), Config(engine="in_process"), lambda states: Log("t"))


OPEN = ["open state 0", "open state 1", "open spout", "prepare"]
CLOSE = ["close spout", "close state 0", "close state 1", "clean up", "close log"]


def test_all_is_closed_once_spouts_first_and_the_log_last() -> None:
    opened = open_one()
    assert calls == OPEN
    opened.closers.close("spouts")
    opened.close()
    opened.close()
    assert calls == OPEN + CLOSE


def test_what_a_state_opened_before_one_failed_is_closed() -> None:
    with pytest.raises(ConfigError, match="no third partition"):
        open_one(partitions=3)
    assert calls == ["open state 0", "open state 1", "close state 0", "close state 1"]


@pytest.mark.parametrize(
    ("step", "left"),
    [
        ("check_states", ["close state 0", "close state 1"]),
        ("reconcile", ["close state 0", "close state 1", "close log"]),
        ("programs_of", ["close spout", "close state 0", "close state 1", "close log"]),
        ("open_committer", CLOSE),
    ],
)
def test_whatever_fails_what_was_opened_is_closed(step: str, left: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(module, step, broken)
    with pytest.raises(RuntimeError, match="broken"):
        open_one()
    assert [call for call in calls if call.startswith(("close", "clean"))] == left


def test_what_cannot_be_closed_keeps_nothing_open(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise OSError("gone")

    closers = Closers("t")
    closers.add("states", broken, lambda: calls.append("state"))
    closers.add("log", lambda: calls.append("log"))
    closers.close()
    assert calls == ["state", "log"]
    assert "topology t: closing failed" in caplog.text
