"""A topology that has changed, on the log of the one before."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spouts import FeederBatchSpout, FixedBatchSpout, TextFileSpout
from states.delta import DeltaState
from tests.harness.topology_runs import QUICK, dict_state, operation, topology_of
from trident import Stream, TopologyError, TridentTopology
from trident.cli.log import report
from trident.errors import BatchFailedError, TopologyChangedError
from trident.log.log_reader import LogReader
from trident.operations import BaseStateUpdater, CombinerAggregator, Count, Max, Sum
from trident.run.running import RunningTopology

Declare = Callable[[Stream, dict[str, Any]], None]


def total(stream: Stream, stores: dict[str, Any], aggregator: Any = None, key: str = "k", name: str = "total") -> None:
    state = dict_state(stores.setdefault(name, {}))
    stream.group_by(key).persistent_aggregate(state, "n", aggregator or Sum(), name)


class Lives:
    """One log and some stores; each life of the topology is declared anew."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.stores: dict[str, Any] = {}
        self.feeder = FeederBatchSpout("k: string, other: string, n: bigint")

    def start(self, *declarations: Declare, stream: str = "s", name: str = "t", **conf: Any) -> RunningTopology:
        topology = TridentTopology(name)
        declared = topology.new_stream(stream, self.feeder)
        for declare in declarations:
            declare(declared, self.stores)
        return topology.start({**QUICK, **conf}, engine="in_process", log_dir=self.log)

    def live(self, *declarations: Declare, **conf: Any) -> None:
        """Commit one batch of one row, which adds 2."""
        with self.start(*declarations, **conf) as running:
            self.feeder.feed([["a", "b", 2]])
            assert running.is_active

    def fail(self, *declarations: Declare, **conf: Any) -> None:
        """Give one row to code that is broken, until the topology ends."""
        running = self.start(*declarations, **conf)
        self.feeder.feed_nowait([["a", "b", 2]])
        with pytest.raises(BatchFailedError, match="the new code is broken"):
            running.await_termination(30)

    def sums(self, name: str = "total") -> Any:
        return self.stores[name][("a",)].curr


@pytest.fixture
def lives(tmp_path: Path) -> Lives:
    return Lives(tmp_path / "log")


def another_key(stream: Stream, stores: dict[str, Any]) -> None:
    total(stream, stores, key="other")


def another_aggregator(stream: Stream, stores: dict[str, Any]) -> None:
    total(stream, stores, Max())


def count(stream: Stream, stores: dict[str, Any]) -> None:
    stream.group_by("k").persistent_aggregate(dict_state(stores.setdefault("count", {})), Count(), "count")


def test_the_same_topology_goes_on_and_nothing_more_is_recorded(lives: Lives) -> None:
    lives.live(total)
    declared = LogReader(lives.log).refresh().declared
    assert list(declared["states"]) == ["total"]
    assert declared["streams"]["s"]["fields"] == ["k: string", "other: string", "n: bigint"]
    size = sum(len(path.read_bytes()) for path in lives.log.glob("*.log"))
    lives.start(total).stop()
    assert LogReader(lives.log).refresh().declared == declared
    newest = max(lives.log.glob("*.log")).read_bytes()
    assert size > 0
    assert newest.count(b"\xa6record\xa8topology") == 0


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (another_key, r"  state 'total': key \(k: string\) -> \(other: string\)\n"),
        (another_aggregator, r"  state 'total': 'total' Sum\(n: bigint\) -> Max\(n: bigint\)\n"),
    ],
)
def test_a_state_that_means_something_else_is_refused_unwritten(lives: Lives, changed: Declare, line: str) -> None:
    lives.live(total)
    before = repr(lives.stores), LogReader(lives.log).refresh().txid
    with pytest.raises(TopologyChangedError, match=line) as caught:
        lives.start(changed)
    assert isinstance(caught.value, TopologyError)
    said = str(caught.value)
    assert 'To do: count again beside it: declare the topology under another name, as in TridentTopology("t-2")' in said
    assert "for its log and checkpoint if you name one" in said
    assert (repr(lives.stores), LogReader(lives.log).refresh().txid) == before
    lives.live(total)  # and it was not recorded either
    assert lives.sums() == 4


def test_what_is_allowed_is_noted_and_needs_no_word_again(lives: Lives, caplog: pytest.LogCaptureFixture) -> None:
    lives.live(total)
    with caplog.at_level(logging.WARNING):
        lives.live(another_aggregator, allow_changed_topology=True)
    assert "state 'total': 'total' Sum(n: bigint) -> Max(n: bigint); taken as it is" in caplog.text
    assert lives.sums() == 2
    lives.live(another_aggregator)
    with pytest.raises(TopologyChangedError, match=r"Max\(n: bigint\) -> Sum"):
        lives.start(total)


def breaks(*given: Any) -> Any:
    raise RuntimeError("the new code is broken")


# At every tuple, before anything is committed; and in the commit, when the state before it is written.
Broken = operation("Broken", CombinerAggregator, "bigint", init=breaks, combine=lambda a, b: a + b, zero=lambda: 0)
Raises = operation("Raises", BaseStateUpdater, None, update_state=breaks)


def broken(stream: Stream, stores: dict[str, Any]) -> None:
    total(stream, stores, Broken())


def raises(stream: Stream, stores: dict[str, Any], kind: str = "opaque") -> None:
    stream.partition_persist(dict_state(stores.setdefault("log", {}), kind), Raises(), state_name="log")


def two_states(stream: Stream, stores: dict[str, Any], aggregator: Any = None, kind: str = "opaque") -> None:
    """The state of `total`, of a kind, and then one that fails in its commit."""
    state = dict_state(stores.setdefault("total", {}), kind)
    stream.group_by("k").persistent_aggregate(state, "n", aggregator or Sum(), "total")
    raises(stream, stores)


def changed_commit(stream: Stream, stores: dict[str, Any]) -> None:
    two_states(stream, stores, Max())


@pytest.mark.parametrize("changed", [broken, changed_commit])
def test_code_that_has_committed_nothing_can_be_rolled_back(lives: Lives, changed: Declare) -> None:
    lives.live(total)
    lives.fail(changed, allow_changed_topology=True)
    assert LogReader(lives.log).refresh().txid == 1
    lives.live(total)  # with the batch that failed
    assert lives.sums() == 6
    declared = LogReader(lives.log).refresh().declared
    assert declared["states"]["total"]["by"] == "Sum"


def test_what_a_failed_attempt_leaves_in_a_transactional_state_has_the_new_meaning(lives: Lives) -> None:
    def old(stream: Stream, stores: dict[str, Any]) -> None:
        state = dict_state(stores.setdefault("total", {}), "transactional")
        stream.group_by("k").persistent_aggregate(state, "n", Sum(), "total")

    def new(stream: Stream, stores: dict[str, Any]) -> None:
        two_states(stream, stores, Max(), "transactional")

    lives.live(old)
    lives.fail(new, allow_changed_topology=True)
    with pytest.raises(TopologyChangedError, match=r"Max\(n: bigint\) -> Sum"):
        lives.start(old)


def test_a_further_source_has_no_part_in_a_batch_that_was_begun_without_it(lives: Lives) -> None:
    def old(stream: Stream, stores: dict[str, Any]) -> None:
        two_states(stream, stores, Sum(), "transactional")

    lives.fail(old)  # the store has the batch, the log has not
    topology, stores, further = TridentTopology("t"), lives.stores, [["a", "b", 30], ["z", "b", 5]]
    declared = topology.new_stream("s", lives.feeder)
    more = topology.new_stream("more", FixedBatchSpout(lives.feeder.get_output_fields(), 1, *further))
    state = dict_state(stores["total"], "transactional")
    topology.merge(declared, more).group_by("k").persistent_aggregate(state, "n", Sum(), "total")
    with topology.start(QUICK, engine="in_process", log_dir=lives.log) as running:
        running.process_all_available()
    assert [stores["total"][key,].value for key in "az"] == [32, 5]


def test_a_first_start_that_commits_nothing_decides_nothing(lives: Lives) -> None:
    lives.fail(broken)
    lives.live(total)
    assert lives.sums() == 4


def test_a_renamed_stream_would_read_its_source_again_and_is_refused(lives: Lives) -> None:
    lives.live(total)
    with pytest.raises(
        TopologyChangedError, match=r"state 'total': streams s -> renamed\n +To do: call the stream 's' as before"
    ):
        lives.start(total, stream="renamed")


def test_the_advice_about_another_source_under_the_same_name_leads_on(lives: Lives) -> None:
    def other(name: str, **conf: Any) -> None:
        topology = TridentTopology("t")
        total(topology.new_stream(name, FixedBatchSpout("k: string, n: bigint", 1, ["a", 5])), lives.stores)
        with topology.start({**QUICK, **conf}, engine="in_process", log_dir=lives.log) as running:
            running.process_all_available()

    lives.live(total)
    with pytest.raises(
        TopologyChangedError,
        match=r'new_stream\("s-2", …\), and start once with allow_changed_topology=True \(--conf allow_changed',
    ):
        other("s")
    with pytest.raises(
        TopologyChangedError,
        match=r"If it is another source, .* start once with allow_changed_topology=True \(--conf allow_changed",
    ):
        other("s-2")
    other("s-2", allow_changed_topology=True)
    assert lives.sums() == 7


@pytest.mark.parametrize("drops", [False, True])
def test_the_advice_to_begin_a_similar_state_with_nothing_leads_on(lives: Lives, drops: bool) -> None:
    def similar(stream: Stream, stores: dict[str, Any]) -> None:
        state = dict_state(stores.setdefault("similar", {}))
        stream.group_by("k").persistent_aggregate(state, "n", Sum(), "total", state_name="similar")

    lives.live(total)
    if drops:
        lives.live(count)  # once without it, which does not help: it may return
    with pytest.raises(
        TopologyChangedError,
        match=r"To begin 'similar' with nothing, start once with allow_changed_topology=True \(--conf allow_changed",
    ):
        lives.start(similar)
    lives.live(similar, allow_changed_topology=True)
    lives.live(similar)
    assert lives.sums("similar") == 4


def test_what_takes_all_changes_says_so_where_there_are_several(lives: Lives) -> None:
    lives.live(total)
    with pytest.raises(TopologyChangedError, match="takes all of these as they are: settle the others first"):
        lives.start(another_key, stream="renamed", allow_changed_topology=False)


def test_states_may_come_and_go_but_not_return_as_others(lives: Lives, caplog: pytest.LogCaptureFixture) -> None:
    lives.live(total)
    lives.live(total, count)
    with caplog.at_level(logging.WARNING):
        lives.live(count)
    assert "state 'total' of the log is no longer declared" in caplog.text
    assert (lives.sums(), lives.sums("count")) == (4, 2)
    with pytest.raises(TopologyChangedError, match=r"Sum\(n: bigint\) -> Max"):
        lives.start(another_aggregator, count)
    with pytest.raises(
        TopologyChangedError, match="state 'total': it was not declared from batch 3 until now"
    ) as refused:
        lives.start(total, count)
    assert "If 'total' is to go on without them, start once with allow_changed_topology=True" in str(refused.value)
    lives.live(total, count, allow_changed_topology=True)
    lives.live(total, count)
    assert (lives.sums(), lives.sums("count")) == (8, 4)


def test_a_state_that_missed_no_row_may_come_back(lives: Lives) -> None:
    def elsewhere(stream: Stream, stores: dict[str, Any]) -> None:
        rows = FixedBatchSpout("k: string, n: bigint", 2, ["a", 5], ["a", 6])
        total(topology_of(stream).new_stream("other", rows), stores, name="elsewhere")

    lives.live(total, elsewhere)
    lives.live(total)  # without its stream as well
    lives.fail(raises)  # without both, but no batch
    lives.fail(partial(raises, kind="transactional"))  # of which the log is told before its batch
    lives.live(total, elsewhere)
    assert (lives.sums(), lives.sums("elsewhere")) == (10, 11)


def read_from(folder: Path, log: Path, *, of: dict[str, str], **conf: Any) -> dict[Any, Any]:
    """Count the lines of files; `of`: by stream the folder, or several, that it reads."""
    topology = TridentTopology("t")
    streams = [
        topology.new_stream(name, TextFileSpout([folder / one for one in read.split()], output_field="w"))
        for name, read in of.items()
    ]
    lines = topology.merge(*streams) if len(streams) > 1 else streams[0]
    lines.group_by("w").persistent_aggregate(DeltaState(folder / "counts"), Count(), "n")
    with topology.start({**QUICK, **conf}, engine="in_process", log_dir=log) as running:
        running.process_all_available()
        return dict(running.state("n").get_tuples())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": "x", "b": "y"}, {"a": "y", "b": "x"}),  # exchanged
        ({"a": "x", "b": "y"}, {"a": "y", "b": "z"}),
        ({"a": "x y", "b": "z"}, {"a": "x", "b": "z y"}),  # one handed over
        ({"a": "x", "b": "y"}, {"a": "z", "b": "y", "c": "x"}),  # to a further stream
        ({"a": "x", "b": "y"}, {"a": "z", "b": "y x/in"}),  # a part of it
        ({"a": "x/in", "b": "y"}, {"a": "z", "b": "y x"}),
    ],
)
def test_what_one_stream_has_read_is_not_read_again_by_another(
    before: dict[str, str], after: dict[str, str], tmp_path: Path
) -> None:
    for name in ("x/in", "y", "z"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / f"{name[0]}.txt").write_text("line\n")
    log, read = tmp_path / "log", {one[0] for some in before.values() for one in some.split()}
    assert read_from(tmp_path, log, of=before) == {"line": len(read)}
    with pytest.raises(
        TopologyChangedError, match=r"which stream '[ab]' has read for state 'n'\n +To do: let '[ab]' read"
    ):
        read_from(tmp_path, log, of=after)
    assert read_from(tmp_path, log, of=before) == {"line": len(read)}


def test_what_a_stream_has_read_before_is_its_own_for_good(tmp_path: Path) -> None:
    for name in "xyz":
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text("line\n")
    log = tmp_path / "log"
    assert read_from(tmp_path, log, of={"a": "x", "b": "y"}) == {"line": 2}
    assert read_from(tmp_path, log, of={"a": "z", "b": "y"}) == {"line": 3}
    with pytest.raises(TopologyChangedError, match=r"stream 'b': it reads '.*x' now, which stream 'a' has read"):
        read_from(tmp_path, log, of={"a": "z", "b": "y x"})
    assert read_from(tmp_path, log, of={"a": "z x", "b": "y"}) == {"line": 3}


def test_trident_log_shows_it(lives: Lives) -> None:
    lives.live(total)
    declared = report(lives.log, 0)["declared"]
    assert declared["states"]["total"]["key"] == ["k: string"]
    assert declared["streams"]["s"]["promise"] == "transactional"
