"""Three drivers that open, take over, append, look and end in any order: a random history agrees with a plain model."""

import random
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.servers import Server
from tests.log.log_homes import FileHome, Home, ZooKeeperHome, stored_home
from tests.log.log_samples import commit
from trident.errors import FencedError, LogError, LogHeldError
from trident.log.records import DefineRecord

pytestmark = pytest.mark.slow

DRIVERS = 3
ACTS = ["open", "take over", "commit", "commit", "commit", "define", "look", "end", "read"]
STEPS = st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, DRIVERS - 1)), max_size=20)

_numbers = count(1)


class Model:
    """What must be so: who owns the log, and what it holds."""

    def __init__(self, home: Home) -> None:
        self.home, self.reader = home, home.reader()
        self.logs: dict[int, Any] = {}
        self.owner: int | None = None
        self.attempts: list[int] = []  # of the committed batches
        self.epoch = 0

    def open(self, driver: int, takeover: bool) -> None:
        if driver in self.logs:
            return
        if self.owner is not None and not takeover:
            with pytest.raises(LogHeldError):
                self.home.open()
            return
        self.epoch += 1
        self.owner = driver
        log = self.logs[driver] = self.home.open(takeover=takeover, segment_bytes=400)
        assert (log.epoch, log.state.txid) == (self.epoch, len(self.attempts))

    def act(self, driver: int, call: Callable[[Any], None]) -> bool:
        """Call something that only the owner can do; return whether it could."""
        if driver not in self.logs:
            return False
        if self.owner != driver:
            with pytest.raises(FencedError):
                call(self.logs[driver])
            return False
        call(self.logs[driver])
        return True

    def step(self, what: str, driver: int) -> None:
        match what:
            case "open" | "take over":
                self.open(driver, what == "take over")
            case "commit":
                log = self.logs.get(driver)
                attempt = 0 if log is None else log.epoch << 20
                if self.act(driver, lambda log: log.append(commit(log.state.txid + 1, attempt))):
                    self.attempts.append(attempt)
            case "define":
                if self.owner == driver:
                    log = self.logs[driver]
                    txid = log.state.txid + 1
                    log.append(DefineRecord(txid, "lines", txid), durable=False)
            case "look":
                self.act(driver, lambda log: log.check_owner())
            case "end":
                log = self.logs.pop(driver, None)
                if log is not None:
                    log.close()
                    self.owner = None if self.owner == driver else self.owner
            case _:
                self.read()

    def read(self) -> None:
        if not self.epoch:
            with pytest.raises(LogError, match="there is no transaction log"):
                self.reader.refresh()
            return
        state = self.reader.refresh()
        assert state.txid == len(self.attempts) == state.totals.get("batches", 0)
        assert [state.winners.winner(txid) for txid in range(1, state.txid + 1)] == self.attempts
        assert (self.reader.holder() is None) == (self.owner is None)

    def end(self) -> None:
        for log in self.logs.values():
            log.close()
        self.owner = None
        with closing(self.reader):
            self.read()


def check(home: Home, steps: list[tuple[str, int]]) -> None:
    model = Model(home)
    try:
        for what, driver in steps:
            model.step(what, driver)
    finally:
        model.end()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_a_history_in_files_agrees_with_a_model(tmp_path: Path, steps: list[tuple[str, int]]) -> None:
    check(FileHome(tmp_path / str(next(_numbers))), steps)


FEW, MANY = range(25), range(25, 600)


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(FEW, marks=pytest.mark.long),
        pytest.param(MANY, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
    ids=["few", "many"],
)
class TestHistoriesOnServers:
    def test_histories_in_zookeeper_agree_with_a_model(self, zookeeper_home: ZooKeeperHome, seeds: range) -> None:
        check_many(zookeeper_home, seeds)

    def test_histories_in_postgres_agree_with_a_model(self, postgres_server: Server, seeds: range) -> None:
        address = f"postgresql://trident@{postgres_server.address}/postgres?topology=histories-"
        check_each(seeds, lambda: stored_home(f"{address}{next(_numbers)}"))

    def test_histories_in_an_object_store_agree_with_a_model(self, s3_server: Server, seeds: range) -> None:
        check_each(seeds, lambda: stored_home(f"s3://logs/histories/{next(_numbers)}"))


def check_many(home: ZooKeeperHome, seeds: range) -> None:
    hosts = home.address.removeprefix("zookeeper://").removesuffix(home.path)
    check_each(seeds, lambda: ZooKeeperHome(hosts, f"{home.path}/{next(_numbers)}", home.client))


def check_each(seeds: range, make_home: Callable[[], Home]) -> None:
    for seed in seeds:
        # Not drawn by Hypothesis, which does not allow that the client's threads draw as well.
        draw = random.Random(seed)
        steps = [(draw.choice(ACTS), draw.randrange(DRIVERS)) for _ in range(20)]
        try:
            check(make_home(), steps)
        except BaseException as error:
            error.add_note(f"seed {seed}: {steps}")
            raise
