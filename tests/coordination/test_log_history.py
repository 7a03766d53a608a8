"""The history of logs in all their homes, and its setting."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.coordination.history_contract import HistoryContract, LivesContract, written
from tests.coordination.log_homes import FileHome, Home, ZooKeeperHome
from trident import Config, TridentTopology, read_history
from trident.coordination import log_state, zookeeper_records
from trident.errors import ConfigError
from trident.operations import Count
from trident.retention import Retention


class InFiles:
    @pytest.fixture
    def home(self, tmp_path: Path) -> FileHome:
        return FileHome(tmp_path / "log")


class TestInFiles(InFiles, HistoryContract):
    pass


class TestLivesInFiles(InFiles, LivesContract):
    pass


class OnServer:
    kind = ""

    @pytest.fixture
    def home(self, request: pytest.FixtureRequest) -> Home:
        home: Home = request.getfixturevalue(f"{self.kind}_home")
        return home


@pytest.mark.server
class TestInZooKeeper(OnServer, HistoryContract):
    kind = "zookeeper"

    def test_no_more_is_kept_than_its_servers_have_room_for(
        self, home: ZooKeeperHome, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(zookeeper_records, "MOST_OLD", 5)
        records = written(home, 60)
        assert len(home.segments()) <= 6
        kept = list(read_history(home.address))
        assert kept == records[-len(kept) :]
        assert sum("although history= would keep it" in message for message in caplog.messages) == 1


@pytest.mark.long
@pytest.mark.server
class TestInPostgres(OnServer, HistoryContract):
    kind = "postgres"


@pytest.mark.long
@pytest.mark.server
class TestInObjectStore(OnServer, HistoryContract):
    kind = "object"


@pytest.mark.long
@pytest.mark.server
class TestLivesInZooKeeper(OnServer, LivesContract):
    kind = "zookeeper"


@pytest.mark.long
@pytest.mark.server
class TestLivesInPostgres(OnServer, LivesContract):
    kind = "postgres"


@pytest.mark.long
@pytest.mark.server
class TestLivesInObjectStore(OnServer, LivesContract):
    kind = "object"


@pytest.mark.parametrize(
    ("setting", "retention"),
    [
        (None, None), (500, Retention(batches=500)), ("500", Retention(batches=500)), ("7d", Retention(ms=604_800_000)),
        ("90 s", Retention(ms=90_000)), ("2w", Retention(ms=1_209_600_000)), (0, Retention(batches=0)),
        ("0", Retention(batches=0)),
    ],
)  # fmt: skip
def test_the_setting_is_a_time_or_a_number_of_batches(setting: str | int | None, retention: Retention | None) -> None:
    assert Retention.of(Config.of(history=setting).history) == retention


@pytest.mark.parametrize("setting", [-1, "7x", "d", "", "0d", "1.5h"])
def test_any_other_setting_is_refused(setting: str | int) -> None:
    with pytest.raises(
        ConfigError, match=r"history=.*: must be a time with its unit, as in '90s', .* number of batches"
    ):
        Config.of(history=setting)


def counts() -> TridentTopology:
    topology = TridentTopology("counts")
    stream = topology.new_stream("words", FixedBatchSpout("word", 1, *(("the",) for _ in range(150))))
    stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    return topology


def test_a_topology_keeps_what_its_setting_says(tmp_path: Path) -> None:
    for _ in range(3):
        settings: dict[str, Any] = {
            "log_dir": tmp_path / "log",
            "history": 1000,
            "state_recovery": "discard_totals",
            "poll_interval_ms": 1,
        }
        with counts().start(engine="in_process", **settings) as running:
            running.process_all_available()
    txids = [each.txid for each in read_history(tmp_path / "log")]
    assert txids == list(range(1, len(txids) + 1))
    assert len(txids) >= 150


@pytest.mark.parametrize(
    ("text", "retention"),
    [("500", Retention(batches=500)), ("90s", Retention(ms=90_000)), ("36h", Retention(ms=129_600_000)),
     ("7d", Retention(ms=604_800_000))],
)  # fmt: skip
def test_a_retention_is_shown_as_it_is_set(text: str, retention: Retention) -> None:
    assert (str(retention), Retention.of(text)) == (text, retention)


def test_two_starts_that_do_not_say_how_long_keep_all_that_the_first_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trident.coordination")
    monkeypatch.setattr(log_state, "HISTORY", 2)
    settings: dict[str, Any] = {"log_dir": tmp_path, "state_recovery": "discard_totals", "poll_interval_ms": 1}
    last = 0
    for history in ("7d", None, None):
        with counts().start(engine="in_process", history=history, **settings) as running:
            running.process_all_available()
            last = running.txid
    assert [each.txid for each in read_history(tmp_path)] == list(range(1, last + 1))
    assert sum("history=7d, which this start does not set" in message for message in caplog.messages) == 2


def test_a_log_in_memory_has_no_history() -> None:
    with pytest.raises(ConfigError, match=r"history=1000: the log of topology 'counts' is in memory.*Give log_dir"):
        counts().start(engine="in_process", history=1000)
