"""`trident.why`: the batches, positions and rows that made a value; what no batch says is said so."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import trident
from spouts import FixedBatchSpout, TextFileSpout
from tests.harness.topology_runs import RowsSpout, dict_state, operation, run_all, start
from trident import QueryBatches, TridentCollector, TridentTopology, TridentTuple
from trident.errors import ReplayFailedError, UnsupportedOperation, WrongKeyError
from trident.operations import Avg, BaseStateUpdater, Count, Function, Max, ReducerAggregator, Split
from trident.run.dead_letters import DeadLetters
from trident.run.running import RunningTopology
from trident.spout.interfaces import SpoutType

WORDS = [["the"], ["cow"], ["the"], ["the"], ["moon"], ["the"]]


class Log:
    """A topology over fixed rows, two a batch, that has run with a log in a folder."""

    def __init__(self, folder: Path, fields: str = "word: string", rows: Sequence[list[Any]] = WORDS) -> None:
        self.log_dir, self.topology = str(folder / "log"), TridentTopology("words")
        self.rows = self.topology.new_stream("words", FixedBatchSpout(fields, 2, *rows))

    def run(self, **conf: Any) -> RunningTopology:
        return run_all(self.topology, "in_process", log_dir=self.log_dir, history="7d", **conf)

    def why(self, *asked: Any, **more: Any) -> list[tuple[Any, ...]]:
        origins = trident.why(self.topology, *asked, log_dir=self.log_dir, **more)
        return [(each.batch.txid, each.count, each.partial, each.before, each.after) for each in origins]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_each_batch_that_wrote_a_word_is_told_with_its_rows_and_totals(log: Log) -> None:
    log.rows.group_by("word").persistent_aggregate(dict_state({}), Count(), "count")
    log.run()
    assert log.why("count", "the") == [(1, 1, 1, None, 1), (2, 2, 2, 1, 3), (3, 1, 1, 3, 4)]
    assert log.why("count", "moon") == [(3, 1, 1, None, 1)]
    assert log.why("count", "the", last=1) == [(3, 1, 1, 3, 4)]
    assert log.why("count", "nobody") == []


def test_rows_are_those_in_front_of_the_state_and_definitions_those_of_the_history(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("the cow\nthe moon\n")
    topology = TridentTopology("lines")
    words = topology.new_stream("lines", TextFileSpout(str(tmp_path / "in"))).each("line", Split(), "word")
    words.group_by("word").persistent_aggregate(dict_state({}), Count(), "count")
    run_all(topology, "in_process", log_dir=str(tmp_path / "log"), history="7d")
    (origin,) = trident.why(topology, "count", "the", log_dir=str(tmp_path / "log"))
    assert origin.rows == [{"line": "the cow", "word": "the"}, {"line": "the moon", "word": "the"}]
    assert origin.batch.spouts["lines"]["ranges"][0][0] == "a.txt"
    (origin,) = trident.why(topology, "count", "the", rows=1, log_dir=str(tmp_path / "log"))
    assert (origin.count, origin.rows) == (2, [{"line": "the cow", "word": "the"}])


def test_a_single_value_and_a_key_of_several_fields(tmp_path: Path) -> None:
    log = Log(tmp_path, "shop: string, day: int, euros: bigint", [["oslo", 1, 5], ["oslo", 2, 7], ["oslo", 1, 9]])
    log.rows.group_by("shop, day").persistent_aggregate(dict_state({}), "euros", Max(), "best", state_name="best")
    log.rows.persistent_aggregate(dict_state({}), Count(), "total")
    log.run()
    assert log.why("best", ("oslo", 1)) == [(1, 1, 5, None, 5), (2, 1, 9, 5, 9)]
    assert log.why("total") == [(1, 2, 2, None, 2), (2, 1, 1, 2, 3)]


def test_a_total_that_is_a_float_has_partials_too(tmp_path: Path) -> None:
    log = Log(tmp_path, "shop: string, euros: float", [["oslo", 1.5], ["oslo", 2.5], ["oslo", 0.5]])
    log.rows.group_by("shop").persistent_aggregate(dict_state({}), "euros", Max(), "best")
    log.run()
    assert log.why("best", "oslo") == [(1, 2, 2.5, None, 2.5), (2, 1, 0.5, 2.5, 2.5)]


def test_several_aggregates_are_one_value(tmp_path: Path) -> None:
    log = Log(tmp_path, "shop: string, euros: double", [["oslo", 1.0], ["oslo", 2.0], ["oslo", 6.0]])
    several = {"orders": Count(), "mean": Avg("euros")}
    log.rows.group_by("shop").persistent_aggregate(dict_state({}), several, "sales", state_name="sales")
    log.run()
    first, second = log.why("sales", "oslo")
    assert (first[4]["mean"], second[3]["mean"], second[4]["mean"]) == (1.5, 1.5, 3.0)
    assert first[2]["orders"] == 2


Last = operation(  # the last word
    "Last", ReducerAggregator, None, init=lambda: "", reduce=lambda value, row: row.get_string(0) or ""
)
PutOne = operation(
    "PutOne", BaseStateUpdater, None, update_state=lambda state, rows, collector: state.multi_put([(1,)], ["one"])
)


def remember(state: Any, rows: Sequence[TridentTuple], collector: TridentCollector) -> None:
    """Put each word under its first letter."""
    latest = {(row["word"][0],): row["word"] for row in rows}
    state.multi_put(list(latest), list(latest.values()))


Remember = operation("Remember", BaseStateUpdater, None, update_state=remember)


def test_a_reducer_has_rows_and_no_partial_and_an_updater_neither(log: Log) -> None:
    log.rows.persistent_aggregate(dict_state({}), "word", Last(), "last: string", state_name="last")
    log.rows.partition_persist(dict_state({}), "word", Remember(), state_name="letters")
    log.run()
    assert log.why("last", last=2) == [(2, 2, None, "cow", "the"), (3, 2, None, "the", "the")]
    assert log.why("letters", ("m",)) == [(3, None, None, None, "moon")]


def test_a_key_that_only_equals_another_one_in_a_dict_has_no_batches(log: Log) -> None:
    log.rows.partition_persist(dict_state({}), "word", PutOne(), state_name="ones")
    log.run()
    assert len(log.why("ones", 1)) > 0
    assert log.why("ones", 1.0) == log.why("ones", True) == []


def test_rows_behind_a_window_are_those_that_it_gave(log: Log) -> None:
    window = log.rows.tumbling_window(3, dict_state({}), "word", Count(), "n")
    window.persistent_aggregate(dict_state({}), "n", Max(), "most", state_name="most")
    log.run()
    assert log.why("most") == [(2, 1, 3, None, 3), (3, 1, 3, 3, 3)]
    (kept,) = (state.name for state in log.topology.graph().states if state.name != "most")
    with pytest.raises(UnsupportedOperation, match=f"explain state '{kept}': it keeps tuples of open windows"):
        log.why(kept, "the")


def test_what_cannot_be_asked_is_refused(log: Log) -> None:
    log.rows.group_by("word").persistent_aggregate(dict_state({}), Count(), "count")
    log.rows.persistent_aggregate(dict_state({}), Count(), "total")
    log.run()
    with pytest.raises(WrongKeyError, match=r"state 'count': it is a map; name the key \(word\)"):
        log.why("count")
    with pytest.raises(WrongKeyError, match="key 'the' of state 'total': it is a single value; name no key"):
        log.why("total", "the")


def test_a_peek_sees_no_tuple_a_second_time(log: Log) -> None:
    seen: list[Any] = []
    log.rows.peek(lambda row: seen.append(row[0])).group_by("word").persistent_aggregate(
        dict_state({}), Count(), "count"
    )
    log.run()
    assert len(seen) == len(WORDS)
    assert log.why("count", "cow") == [(1, 1, 1, None, 1)]
    assert len(seen) == len(WORDS)


class Odd:
    """Raises at one word, until it is mended."""

    mended = False

    def __call__(self, row: TridentTuple) -> str:
        if row["word"] == "cow" and not self.mended:
            raise ValueError(row["word"])
        return str(row["word"])


def test_dead_letters_are_left_out_as_they_were_and_each_counts_once_when_it_is_back(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters: dict[str, Any] = {"on_poison": "dead_letter", "max_batch_attempts": 2}
    log.rows.map(Odd(), "word: string").group_by("word").persistent_aggregate(dict_state({}), Count(), "count")
    running = log.run(**letters)
    assert log.why("count", "the", last=1) == [(3, 1, 1, 3, 4)]
    assert log.why("count", "cow") == []
    monkeypatch.setattr(Odd, "mended", True)
    with pytest.raises(
        ReplayFailedError, match="'dead letters': it has 0 dead letters now, and had 1 when it was committed"
    ):
        log.why("count", "cow")
    DeadLetters(running.config.dead_letter_folder("words")).request(running.log_state, {1: [[0, 1]]})
    log.run(**letters)
    assert log.why("count", "cow") == [(1, 1, 1, None, 1)]  # where it would have been
    (done,) = trident.verify_state(log.topology, log_dir=log.log_dir)
    assert (done.txid, done.equal, list(done.wrong)) == (4, 3, [])


class Prepared(Function):
    """Works between prepare and cleanup only."""

    def prepare(self, conf: Mapping[str, Any], context: Any) -> None:
        self.ready = True

    def cleanup(self) -> None:
        self.ready = False

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        assert self.ready
        collector.emit([tuple[0]])


def test_a_topology_that_runs_in_this_process_keeps_its_objects(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    topology, log_dir = TridentTopology("words"), str(tmp_path / "log")
    spout = TextFileSpout(str(tmp_path / "in"), allow_empty=True)
    lines = topology.new_stream("lines", spout).each("line", Prepared(), "word: string")
    lines.group_by("word").persistent_aggregate(dict_state({}), Count(), "count")
    with start(topology, "in_process", log_dir=log_dir, history="7d") as running:
        for number in range(3):
            (tmp_path / "in" / f"{number}").write_text("the\n")
            running.process_all_available()
            origins = trident.why(topology, "count", "the", log_dir=log_dir)
            assert [origin.after for origin in origins] == list(range(1, number + 2))


def test_batches_of_a_query_are_refused(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.rows.group_by("word").persistent_aggregate(dict_state({}), Count(), "count")
    log.run()
    topology = TridentTopology("words")
    rows = topology.new_stream("words", QueryBatches("word: string", deterministic=True))
    rows.group_by("word").persistent_aggregate(dict_state({}), Count(), "count")
    with pytest.raises(UnsupportedOperation, match="a QueryBatches, is transactional and does not give the rows"):
        trident.why(topology, "count", "a", log_dir=log.log_dir)


def test_a_spout_that_does_not_give_a_batch_again_is_refused(tmp_path: Path) -> None:

    topology = TridentTopology("opaque")
    spout = RowsSpout("word: string", {1: [("a",)]}, SpoutType.OPAQUE)
    words = topology.new_stream("words", spout)
    words.group_by("word").persistent_aggregate(dict_state({}), Count(), "count")
    run_all(topology, "in_process", log_dir=str(tmp_path / "log"), history="7d")
    with pytest.raises(
        UnsupportedOperation, match="the spout of stream 'words', a RowsSpout, is opaque and does not give"
    ):
        trident.why(topology, "count", "a", log_dir=str(tmp_path / "log"))
