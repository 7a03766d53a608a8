"""A running topology whose log is on a server that fails: it waits, goes on, and every row is counted once."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.crash.case import EXACT, TXID, Case, Pairing, Store
from tests.crash.driver_runs import Outcome
from tests.harness.commands import until
from tests.harness.proxy import Point, Proxy
from tests.harness.servers import Server
from tests.harness.zookeeper_servers import ZooKeeperEnsemble, start_zookeeper
from trident.errors import LogError
from trident.run.running import RunningTopology, start
from trident.servers import patience
from trident.spout.interfaces import TransactionAttempt

pytestmark = [pytest.mark.slow, pytest.mark.server]

POINTS: tuple[Point, ...] = ("half request", "reply", "held request")
Observe = Callable[[str, TransactionAttempt], None]


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    with start_zookeeper(tmp_path / "zookeeper") as zookeeper:
        yield zookeeper


@dataclass(frozen=True)
class Mortal:
    """A server of one test: how addresses of logs there begin, where states are, how it dies and comes back."""

    name: str
    store: str
    log_at: str
    kill: Callable[[], None]
    start: Callable[[], None]


@pytest.fixture(params=["ZooKeeper", "PostgreSQL", "PostgreSQL with states"])
def killed(request: pytest.FixtureRequest) -> Mortal:
    if request.param == "ZooKeeper":
        zookeeper: ZooKeeperEnsemble = request.getfixturevalue("mortal")
        return Mortal(
            request.param, "memory", f"zookeeper://{zookeeper.hosts}/crash", zookeeper.stop, zookeeper.restart
        )
    postgres: Server = request.getfixturevalue("postgres_server")
    log_at = f"postgresql://trident@{postgres.address}/postgres?topology="
    store = "memory" if request.param == "PostgreSQL" else "postgres"
    return Mortal("PostgreSQL", store, log_at, postgres.kill, postgres.start)


def started(case: Case, directory: Path, life: int = 1, observe: Observe | None = None) -> RunningTopology:
    return start(case.topology(directory, life).graph(), case.config(directory), None, observe)


def finished(case: Case, directory: Path, outcomes: list[Outcome]) -> None:
    outcome = Outcome(case).finish(directory, case.log(directory))
    outcomes.append(outcome)
    assert not outcome.differences(), outcome.differences()
    Store.forget(directory)


@pytest.mark.sample(1)
@pytest.mark.parametrize("pairing", EXACT, ids=str)
def test_connections_cut_at_every_step_of_every_batch_lose_and_double_nothing(
    pairing: Pairing, zookeeper_server: ZooKeeperEnsemble, tmp_path: Path, outcomes: list[Outcome]
) -> None:
    proxy, points, cut = Proxy(zookeeper_server.members[0].port), itertools.cycle(POINTS), list[str]()
    pending = 1 + 2 * (EXACT.index(pairing) % 2)
    case = Case("any", pairing, "memory", pending=pending, log_at=f"zookeeper://127.0.0.1:{proxy.port}/crash")

    def observe(step: str, attempt: TransactionAttempt) -> None:
        proxy.arm(next(points), lambda: cut.append(step))

    try:
        with started(case, tmp_path, observe=observe) as running:
            running.process_all_available()
            assert running.status["failures"] == 0
        assert len(cut) > 12
        finished(case, tmp_path, outcomes)
    finally:
        proxy.close()


@pytest.mark.long
@pytest.mark.parametrize(
    "step", ["committed", *(pytest.param(step, marks=pytest.mark.soak) for step in ("defined", "recorded"))]
)
def test_a_server_that_is_killed_and_restarted_is_waited_for(
    step: str, killed: Mortal, tmp_path: Path, outcomes: list[Outcome], caplog: pytest.LogCaptureFixture
) -> None:
    case, restarts = Case("any", EXACT[1], killed.store, log_at=killed.log_at), list[threading.Thread]()

    def restart(times: int) -> None:
        until(lambda: caplog.text.count("waiting until there is one") == times, "the log is waited for")
        killed.start()

    def observe(at: str, attempt: TransactionAttempt) -> None:
        if at == step and attempt.txid in (2, TXID + 1):
            for thread in restarts:
                thread.join()
            killed.kill()
            restarts.append(threading.Thread(target=restart, args=(len(restarts) + 1,)))
            restarts[-1].start()

    with started(case, tmp_path, observe=observe) as running:
        running.process_all_available()
        assert running.status["failures"] == 0
    for thread in restarts:
        thread.join()
    assert len(restarts) == 2
    assert caplog.text.count(f"{killed.name} answers again") == 2
    finished(case, tmp_path, outcomes)


@pytest.mark.long
@pytest.mark.parametrize("step", ["committed", "recorded"])
def test_a_waiting_topology_can_be_stopped_and_the_next_counts_all_once(
    step: str, mortal: ZooKeeperEnsemble, tmp_path: Path, outcomes: list[Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "STOP_S", 1.0)
    case, away = Case("any", EXACT[2], "memory", log_at=f"zookeeper://{mortal.hosts}/crash"), threading.Event()

    def observe(at: str, attempt: TransactionAttempt) -> None:
        if (at, attempt.txid) == (step, TXID):
            mortal.stop()
            away.set()

    running = started(case, tmp_path, observe=observe)
    assert away.wait(30)
    since = time.monotonic()
    running.stop()
    assert time.monotonic() - since < 10
    if step == "committed":  # the record of this batch may or may not be there
        assert isinstance(running.exception(), LogError)
    mortal.restart()
    with started(case, tmp_path, 2) as again:
        assert again.txid in (TXID - 1, TXID)
        again.process_all_available()
    finished(case, tmp_path, outcomes)
