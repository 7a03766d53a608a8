"""The history of logs in all their homes, and its setting."""

import itertools
import logging
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import run_all
from tests.log.log_homes import FileHome, Home, ZooKeeperHome
from tests.log.log_samples import ATTEMPT, commit
from trident import Config, TridentTopology
from trident.errors import ConfigError, FencedError, HistoryGapError
from trident.log import log_state, zookeeper_records
from trident.log.file_log import LogFile
from trident.log.log_address import read_history
from trident.log.records import AdoptRecord, CommitRecord, DefineRecord, Record, RenameRecord, TopologyRecord
from trident.nodes.zookeeper_nodes import ZooKeeperNodes
from trident.operations import Count
from trident.retention import Retention
from trident.servers.patience import Patience

ALL, NONE = Retention(batches=1_000_000), Retention(batches=0)
STEPS = st.lists(st.one_of(st.integers(1, 12), st.sampled_from(["restart", "takeover", "lost"])), max_size=12)


def timed(txid: int, attempt: int = ATTEMPT) -> CommitRecord:
    return CommitRecord(
        txid, attempt, {"lines": {"to": txid}}, {"counts": [0]}, {"tuples": txid}, 1_700_000_000_000 + 1000 * txid
    )


def written(home: Home, batches: int, **options: Any) -> list[CommitRecord]:
    """Append batches to the log; return them."""
    chosen: dict[str, Any] = {"segment_bytes": 1, "history": ALL, **options}
    with closing(home.open(**chosen)) as log:
        txid = log.state.txid
        records = [timed(each) for each in range(txid + 1, txid + batches + 1)]
        for record in records:
            log.append(record)
    return records


PLACES = [
    *((Path, name) for name in ("open", "rename", "unlink")),
    (LogFile, "write"),
    (Patience, "run"),
    (ZooKeeperNodes, "call"),
]
"""What opens or changes a file, or asks a server."""


class Killed(BaseException):
    """The process was killed."""


@contextmanager
def counted(most: float = math.inf) -> Iterator[list[str]]:
    """Give a list of the calls that open or change a file, or ask a server; after `most` of them the process is dead."""
    calls: list[str] = []

    def with_count(name: str, real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if len(calls) >= most:
                raise Killed
            calls.append(name)
            return real(*args, **options)

        return call

    with ExitStack() as stack:
        for kind, name in PLACES:
            stack.enter_context(mock.patch.object(kind, name, with_count(name, getattr(kind, name))))
        yield calls


def asked(home: Home) -> int:
    """Open the log, and return how many calls that took."""
    with counted() as calls:
        home.open(segment_bytes=1, history=ALL).close()
        return len(calls)


def fewest(home: Home) -> int:
    """As `asked`, of several times: it may ask once more, until the server has noticed that the last connection is closed."""
    return min(asked(home) for _ in range(4))


def homes(*kinds: str, long: Sequence[str] = ()) -> list[Any]:
    """Return kinds of homes as parameters; those on servers, and those that are for long runs, with their marks."""
    server, late = pytest.mark.server, pytest.mark.long
    marks = {kind: [*([server] * (kind != "file")), *([late] * (kind in long))] for kind in (*kinds, *long)}
    return [pytest.param(kind, marks=each) for kind, each in marks.items()]


class HistoryHome:
    """A log that itself needs two batches, so that what is read of more is the history."""

    @pytest.fixture
    def home(self, request: pytest.FixtureRequest, tmp_path: Path) -> Home:
        if request.param == "file":
            return FileHome(tmp_path / "log")
        home: Home = request.getfixturevalue(f"{request.param}_home")
        return home

    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_state, "HISTORY", 2)


@pytest.mark.parametrize("home", homes("file", "zookeeper", long=("postgres", "object")), indirect=True)
class TestHistory(HistoryHome):
    """What is kept, what is read, what is told when some of it is gone."""

    def test_every_batch_is_kept_in_order_with_its_definition_and_time(self, home: Home) -> None:
        records = written(home, 30) + written(home, 5)
        assert list(read_history(home.address)) == records
        assert len(home.segments()) > 6
        assert list(read_history(home.address, first=9, last=12)) == records[8:12]
        since = datetime.fromtimestamp(1_700_000_020, UTC)
        assert list(read_history(home.address, since=since)) == records[19:]
        assert list(read_history(home.address, since=datetime.min)) == records  # a moment without a zone, of the year 1
        assert list(read_history(home.address, first=36)) == []

    @pytest.mark.parametrize("kept_for", [Retention(batches=10), Retention(ms=10_000)], ids=["batches", "a time"])
    def test_batches_or_a_time_are_kept_and_what_is_older_is_removed(self, home: Home, kept_for: Retention) -> None:
        records = written(home, 40, history=kept_for)
        kept = list(read_history(home.address))
        assert kept == records[-len(kept) :]
        assert 10 <= len(kept) <= 30

    def test_a_start_that_says_nothing_keeps_the_history(self, home: Home, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "trident.log.log_interface")
        records = written(home, 10) + written(home, 10, history=None)
        home.open().close()
        assert list(read_history(home.address)) == records
        assert [message.count("history=1000000, which this start does not set") for message in caplog.messages] == [
            1,
            1,
        ]

    def test_a_history_is_given_up_by_name_and_then_stays_so(self, home: Home) -> None:
        written(home, 30)
        home.open(history=NONE).close()
        assert len(home.segments()) == 2
        written(home, 10, history=None)
        assert len(home.segments()) == 2

    def test_batches_name_states_as_they_are_called_at_the_end(self, home: Home) -> None:
        means = {"counts": {"kind": "opaque"}}
        with closing(home.open(segment_bytes=1, history=ALL)) as log:
            log.append(TopologyRecord(means, {}))
            log.append(timed(1))
            log.append(RenameRecord("counts", "totals"))
            log.append(replace(timed(2), touched={"totals": [0]}))
            log.append(RenameRecord("totals", "sums"))
            log.append(TopologyRecord(means, {}))  # another state, of the first one's name
            log.append(replace(timed(3), touched={"counts": [1], "sums": [0]}))
        beside: list[Record] = []
        found = list(read_history(home.address, beside=lambda record, _: beside.append(record)))
        assert [one.touched for one in found] == [{"sums": (0,)}] * 2 + [{"counts": (1,), "sums": (0,)}]
        assert [list(each.states) for each in beside if isinstance(each, TopologyRecord)] == [["sums"], ["counts"]]

    def test_adopted_batches_are_no_gap(self, home: Home) -> None:
        first = written(home, 3)
        with closing(home.open(segment_bytes=1, history=ALL)) as log:
            log.append(AdoptRecord("counts", 20, True))
        later = written(home, 8)
        assert [each.txid for each in later] == list(range(21, 29))
        assert list(read_history(home.address)) == first + later

    def test_batches_that_were_adopted_before_the_oldest_record_are_no_gap(self, home: Home) -> None:
        first = written(home, 3)
        with closing(home.open(history=NONE)) as log:
            log.append(AdoptRecord("counts", 20, True))
        for _ in range(2):
            home.open().close()
        assert list(read_history(home.address)) == first[1:]
        (later,) = written(home, 1, history=None)
        for _ in range(3):
            assert list(read_history(home.address)) in ([*first[1:], later], [first[2], later])
            home.open().close()

    def test_a_driver_that_was_replaced_adds_and_removes_nothing(self, home: Home) -> None:
        first = home.open(segment_bytes=1, history=None)
        for txid in range(1, 4):
            first.append(timed(txid))
        second = home.open(takeover=True, segment_bytes=1, history=ALL)
        for txid in range(4, 12):
            second.append(timed(txid, 2 << 20))
        before = home.segments()
        with pytest.raises(FencedError):
            first.append(timed(4))
        first.close()
        second.close()
        assert set(before) <= set(home.segments())
        assert [(each.txid, each.attempt >> 20) for each in read_history(home.address)][-8:] == [
            (n, 2) for n in range(4, 12)
        ]

    def test_a_start_does_not_read_the_history(self, home: Home) -> None:
        written(home, 20)
        few = fewest(home)
        written(home, 60)
        assert len(home.segments()) > 12
        assert fewest(home) == few > 0

    def test_a_missing_segment_is_told_and_what_is_behind_it_can_be_read(self, home: Home) -> None:
        records = written(home, 30)
        home.lose(home.segments()[3])
        got: list[CommitRecord] = []
        with pytest.raises(HistoryGapError, match=r"lacks batches (\d+) to \d+: .*`--since \d+`") as caught:
            got.extend(read_history(home.address))
        _, missing, resume, _ = caught.value.args
        assert missing == f"batches {len(got) + 1} to {resume - 1}"
        assert got + list(read_history(home.address, first=resume)) == records[: len(got)] + records[resume - 1 :]
        assert written(home, 3)[-1].txid == 33  # the topology goes on

    def test_a_damaged_segment_is_told_by_name(self, home: Home) -> None:
        records = written(home, 30)
        place = home.damage(home.segments()[3])
        got: list[CommitRecord] = []
        with pytest.raises(HistoryGapError, match=rf"lacks batches \d+ to \d+: .*{re.escape(place)}") as caught:
            got.extend(read_history(home.address))
        resume = caught.value.args[2]
        assert 3 < len(got) < resume - 1 < 30
        assert got + list(read_history(home.address, first=resume)) == records[: len(got)] + records[resume - 1 :]
        assert len(list(read_history(home.address, first=resume))) == 31 - resume
        written(home, 20, history=Retention(batches=5))  # and it is removed like any other one
        assert len(home.segments()) < 8

    def test_what_a_crash_left_while_old_segments_were_removed_goes_at_the_next_start(self, home: Home) -> None:
        written(home, 40)
        oldest = home.segments()[0]
        home.remove_half(oldest)
        written(home, 1, history=Retention(batches=1000))
        assert len(list(read_history(home.address))) >= 30
        written(home, 1, history=Retention(batches=30))
        assert oldest not in home.segments()
        assert next(read_history(home.address)).txid <= 12


@pytest.mark.parametrize("home", homes("file", long=("zookeeper", "postgres", "object")), indirect=True)
class TestLives(HistoryHome):
    """Any sequence of appends, segments, restarts and takeovers, against a plain list."""

    @settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps=STEPS, batches=st.integers(1, 40))
    def test_any_life_of_a_log_is_a_plain_list(self, home: Home, steps: list[Any], batches: int) -> None:
        self.check_life(home, steps, batches)

    @pytest.mark.soak
    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps=STEPS, batches=st.integers(1, 40))
    def test_many_lives(self, home: Home, steps: list[Any], batches: int) -> None:
        self.check_life(home, steps, batches)

    def check_life(self, home: Home, steps: list[Any], batches: int) -> None:
        """Append, restart, take over and lose writers; compare the history with a list."""
        with suppress(Exception):
            home.remove()
        options: dict[str, Any] = {"segment_bytes": 1, "history": Retention(batches=batches)}
        log, records = home.open(**options), list[CommitRecord]()
        for step in steps:
            if isinstance(step, int):
                for _ in range(step):
                    txid = len(records) + 1
                    log.append(DefineRecord(txid, "lines", "x" * txid), durable=False)
                    records.append(timed(txid, log.epoch << 20))
                    log.append(records[-1])
            else:
                before = log
                if step == "restart":
                    log.close()
                log = home.open(**options, takeover=True)
                if step == "lost":
                    with pytest.raises(FencedError):
                        before.append(commit(len(records) + 1, before.epoch << 20))
                before.close()
        log.close()
        kept = list(read_history(home.address))
        assert kept == records[len(records) - len(kept) :]
        assert len(kept) >= min(len(records), batches)
        assert len(home.segments()) <= 4 + batches + sum(isinstance(step, str) for step in steps)

    @pytest.mark.slow
    def test_a_kill_at_any_point_loses_no_batch_and_leaves_nothing_behind(self, home: Home) -> None:
        options: dict[str, Any] = {"segment_bytes": 1, "history": Retention(batches=12), "takeover": True}
        done = len(written(home, 30, **options))
        for most in itertools.count():
            log = None
            with counted(most) as calls, suppress(Killed):
                log = home.open(**options)
                for txid in range(log.state.txid + 1, log.state.txid + 9):
                    log.append(timed(txid))
                    done = txid
                log.close()
            if log is not None:
                log.close()  # a connection that is open would be complained of
            home.open(**options).close()
            kept = list(read_history(home.address))
            assert kept[-1].txid in (done, done + 1)  # at most one more than was said
            done = kept[-1].txid
            assert kept == [timed(txid) for txid in range(kept[0].txid, done + 1)]
            assert len(kept) >= 12
            if len(calls) < most:
                break
        assert most > 15
        records = written(home, 80, **options)
        assert list(read_history(home.address))[-12:] == records[-12:]
        assert len(home.segments()) <= 8


@pytest.mark.parametrize("home", homes("zookeeper"), indirect=True)
class TestInZooKeeper(HistoryHome):
    def test_no_more_is_kept_than_its_servers_have_room_for(
        self, home: ZooKeeperHome, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(zookeeper_records, "MOST_OLD", 5)
        records = written(home, 60)
        assert len(home.segments()) <= 6
        kept = list(read_history(home.address))
        assert kept == records[-len(kept) :]
        assert sum("although history= would keep it" in message for message in caplog.messages) == 1


@pytest.mark.parametrize(
    ("setting", "retention"),
    [
        (None, None), (500, Retention(batches=500)), ("500", Retention(batches=500)), ("7d", Retention(ms=604_800_000)),
        ("90 s", Retention(ms=90_000)), ("2w", Retention(ms=1_209_600_000)), (0, Retention(batches=0)),
        ("0", Retention(batches=0)), ("36h", Retention(ms=129_600_000)),
    ],
)  # fmt: skip
def test_the_setting_is_a_time_or_a_number_of_batches(setting: str | int | None, retention: Retention | None) -> None:
    assert Retention.of(Config.of(history=setting).history) == retention
    if setting in ("500", "7d", "36h"):
        assert str(retention) == setting


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


@pytest.mark.slow
def test_two_starts_that_do_not_say_how_long_keep_all_that_the_first_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trident.log")
    monkeypatch.setattr(log_state, "HISTORY", 2)
    settings: dict[str, Any] = {"log_dir": tmp_path, "state_recovery": "discard_totals", "poll_interval_ms": 1}
    last = 0
    for history in ("7d", None, None):
        running = run_all(counts(), "in_process", history=history, **settings)
        last = running.txid
    assert [each.txid for each in read_history(tmp_path)] == list(range(1, last + 1))
    assert sum("history=7d, which this start does not set" in message for message in caplog.messages) == 2


def test_a_log_in_memory_has_no_history() -> None:
    with pytest.raises(ConfigError, match=r"history=1000: the log of topology 'counts' is in memory.*Give log_dir"):
        counts().start(engine="in_process", history=1000)
