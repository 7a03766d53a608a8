"""`state_recovery="rewind"`: a store that was set back gets what it lacks and no other does; or it is refused by name."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trident
from spouts import FixedBatchSpout, TextFileSpout
from states.memory import LRUMemoryMapState, MemoryMapState
from tests.harness.topology_runs import RowsSpout, run_all
from tests.replay.set_back import Entries, Stores
from trident import Stream, TridentTopology
from trident.errors import ReplayFailedError, RewindError, StartMismatchError, StateMismatchError, StoreAwayError
from trident.operations import BaseFilter, Count, MapGet, Max, Sum
from trident.run.engine_choice import giving_up_if
from trident.spout.interfaces import SpoutType
from trident.state import OpaqueValue, Sentinel

pytestmark = pytest.mark.slow

WORDS = ["a", "b", "c", "a", "d", "a", "b", "e", "f", "a", "g", "b", "c", "a", "h", "a", "b", "a", "i", "a"]


class World:
    """Counts words, a batch each: by word in three partitions, and in all."""

    def __init__(self, folder: Path) -> None:
        self.log, self.stores = str(folder / "log"), Stores()
        self.more: Callable[[World, Stream], Any] = lambda world, words: None
        self.partitions, self.aggregate = 3, Count

    def topology(self, batches: int) -> TridentTopology:
        topology = TridentTopology("t")
        words = topology.new_stream("words", FixedBatchSpout("w: string", 1, *[[word] for word in WORDS[:batches]]))
        count = words.group_by("w").persistent_aggregate(self.stores.state(), Count(), "n", state_name="count")
        count.parallelism_hint(self.partitions)
        words.persistent_aggregate(self.stores.state(), Count(), "total")
        self.more(self, words)
        return topology

    def run(self, batches: int, **conf: Any) -> Entries:
        """Run so many batches; return what is stored then."""
        run_all(self.topology(batches), "in_process", log_dir=self.log, **{"history": "7d", **conf})
        return self.stores.copy()

    def set_back(self, batches: int, then: int, *states: str, **conf: Any) -> tuple[Entries, Entries]:
        """Run so many batches, then some more, and set states back; return what was stored after the first and the last."""
        old, last = self.run(batches, **conf), self.run(then, **conf)
        self.stores.set_back(old, *states)
        return old, last

    def refused(self, batches: int, match: str, error: type[StateMismatchError] = RewindError, **conf: Any) -> None:
        """Check that it is refused, and that nothing is written."""
        before = self.stores.copy()
        with pytest.raises(error, match=match):
            self.run(batches, state_recovery="rewind", **conf)
        assert self.stores.copy() == before

    def judge(self, batches: int) -> None:
        done = trident.verify_state(self.topology(batches), log_dir=self.log)
        assert not [one for one in done if one.wrong]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def written(entries: Entries, state: str) -> dict[Any, Any]:
    stored = [one.items() for (name, _), one in entries.items() if name == state]
    return {key: value for items in stored for key, value in items if isinstance(value, OpaqueValue)}


def test_only_what_lacks_batches_is_written_and_each_value_is_as_it_was(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    _, before = world.set_back(6, 15, "count")
    puts, (total,) = dict.fromkeys(world.stores.puts, 0), [place for place in before if place[0] == "total"]
    world.stores.puts = puts
    with caplog.at_level(logging.WARNING):
        after = world.run(15, state_recovery="rewind")
    assert after == before
    assert world.stores.puts[total] == 0
    assert "topology t: rewound 9 of 9 batches" in caplog.text
    assert "state count: rewound by 9 batches, exact again" in caplog.text
    assert world.run(20)[total] != before[total]  # they belong together again
    world.judge(20)


def test_a_state_in_memory_is_made_again_at_each_start(tmp_path: Path) -> None:
    def topology(batches: int) -> TridentTopology:
        topology = TridentTopology("t")
        words = topology.new_stream("words", FixedBatchSpout("w: string", 1, *[[word] for word in WORDS[:batches]]))
        words.group_by("w").persistent_aggregate(MemoryMapState(), Count(), "count")
        return topology

    for batches in (6, 15):
        settings: dict[str, Any] = {"log_dir": str(tmp_path / "log"), "history": "7d", "state_recovery": "rewind"}
        running = run_all(topology(batches), "in_process", **settings)
        assert running.state("count").multi_get(["a", "b"]) == [WORDS[:batches].count(word) for word in "ab"]


def behind_a_query(world: World, words: Stream) -> None:
    counts = world.stores.state()
    last = words.group_by("w").persistent_aggregate(counts, Count(), "n", state_name="asked")
    known = words.state_query(last, "w", MapGet(), "before").group_by("before")
    known.persistent_aggregate(world.stores.state(), Count(), "times", state_name="behind")


def test_a_state_behind_a_query_is_made_of_what_it_read_then(world: World) -> None:
    world.more = behind_a_query
    old, before = world.set_back(6, 20, "behind")
    world.stores.puts.clear()
    assert world.run(20, state_recovery="rewind") == before
    assert {state for state, _ in world.stores.puts} == {"behind"}  # what was asked was computed aside
    world.stores.set_back(old, "behind", "asked")
    assert world.run(20, state_recovery="rewind") == before


def test_what_a_query_read_then_and_no_history_tells_is_refused(world: World) -> None:
    world.more = behind_a_query
    for batches in (2, 3, 4):  # a log of the second start on has no first batch any more
        world.run(batches, history=None)
    old, _ = world.set_back(6, 20, "behind")
    world.refused(20, "it reads state 'asked' as of batch 6, which has batch 20, and the history does not begin with")
    world.stores.set_back(old, "asked")
    world.run(20, state_recovery="rewind")  # both are of the same batch
    with trident.open_state(world.topology(20), "behind", log_dir=world.log) as state:
        assert state.multi_get([None, 1, 2]) == [9, 3, 2]


def test_a_state_that_was_emptied_since_and_got_nothing_then_is_emptied_again(world: World) -> None:
    old = world.run(6)
    world.stores.set_back({}, "count")
    world.run(6, state_recovery="discard_totals")
    world.stores.set_back(old, "count")
    assert written(world.run(6, state_recovery="rewind"), "count") == {}
    world.run(10)
    world.judge(10)


def test_a_state_that_was_declared_later_gets_no_batch_of_before(world: World) -> None:
    world.run(6)
    world.more = lambda world, words: words.persistent_aggregate(world.stores.state(), Count(), "late")
    before = world.run(20)
    world.stores.set_back({}, "late")
    assert written(world.run(20, state_recovery="rewind"), "late") == written(before, "late")
    (late,) = written(before, "late").values()
    assert late.curr == 14


class Odd(BaseFilter):
    """Raises for some words."""

    words = "ceg"

    def is_keep(self, tuple: Any) -> bool:
        if tuple["w"] in list(Odd.words):
            raise ValueError("odd")
        return True


def test_tuples_that_were_left_out_are_left_out_again(world: World) -> None:
    world.more = lambda world, words: words.filter(Odd()).persistent_aggregate(world.stores.state(), Count(), "even")
    letters: dict[str, Any] = {"on_poison": "dead_letter", "max_batch_attempts": 2}
    old = world.run(2, **letters)
    before = world.run(20, **letters)
    for states in (["even", "count"], ["even"], ["count"]):
        world.stores.set_back(old, *states)
        assert world.run(20, state_recovery="rewind", **letters) == before


def test_tuples_that_would_not_be_left_out_now_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.more = lambda world, words: words.filter(Odd()).persistent_aggregate(world.stores.state(), Count(), "even")
    letters: dict[str, Any] = {"on_poison": "dead_letter", "max_batch_attempts": 2}
    world.set_back(2, 10, "even", **letters)
    monkeypatch.setattr(Odd, "words", "")
    with pytest.raises(RewindError, match="batch 3 .*: it has 0 dead letters now, and had 1 when it was committed"):
        world.run(10, state_recovery="rewind", **letters)


def test_a_start_that_is_asked_to_end_leaves_the_rest_to_the_next_one(world: World) -> None:
    _, before = world.set_back(6, 20, "count")
    with pytest.raises(RewindError, match="it was asked to end. 1 batch was, and"), giving_up_if(lambda: True):
        world.run(20, state_recovery="rewind")
    assert world.run(20, state_recovery="rewind") == before


def test_a_store_that_is_away_for_a_while_is_waited_for(world: World) -> None:
    _, before = world.set_back(6, 20, "count")
    world.stores.fail_in, world.stores.error = 7, StoreAwayError("put: no answer", "the store")
    assert world.run(20, state_recovery="rewind") == before
    assert world.stores.fail_in is None


def test_the_error_of_a_start_that_refuses_says_that_there_is_a_way_back(world: World) -> None:
    world.set_back(6, 15, "count")
    with pytest.raises(StateMismatchError, match='What to do: start once with state_recovery="rewind"'):
        world.run(15)


def test_without_a_history_it_is_refused(world: World) -> None:
    world.set_back(6, 15, "count", history=None)
    world.refused(15, r"the topology keeps no history \(history=\)", history=None)


def test_a_history_that_does_not_reach_back_is_refused(world: World) -> None:
    old = world.run(6, history=None)
    for batches in (7, 8, 9, 10):
        world.run(batches, history=None)
    world.run(20)
    world.stores.set_back(old, "count")
    world.refused(20, "a partition in its store ends with batch 0, and the history begins with batch 9")


def test_a_source_that_lost_a_batch_is_refused_after_those_that_it_has(tmp_path: Path) -> None:
    stores, books = Stores(), tmp_path / "books"
    books.mkdir()

    def run(**conf: Any) -> None:
        topology = TridentTopology("t")
        lines = topology.new_stream("lines", TextFileSpout(str(books)))
        lines.group_by("line").persistent_aggregate(stores.state(), Count(), "n", state_name="count")
        run_all(topology, "in_process", log_dir=str(tmp_path / "log"), history="7d", **conf)

    copies = []
    for name in "abc":
        (books / name).write_text("x\n")
        run()
        copies.append(stores.copy())
    stores.set_back(copies[0], "count")
    (books / "c").rename(tmp_path / "c")
    with pytest.raises(
        RewindError, match="batch 3 cannot be processed again as it was, at step 'lines': .* 1 batch was, and"
    ) as raised:
        run(state_recovery="rewind")
    assert isinstance(raised.value.__cause__, ReplayFailedError)
    (tmp_path / "c").rename(books / "c")
    run(state_recovery="rewind")
    assert stores.entries == copies[2]


def test_a_source_that_never_gives_a_batch_again_is_refused(tmp_path: Path) -> None:
    stores, rows = Stores(), {1: [["a"]], 2: [["a"]]}

    def run(batches: int, **conf: Any) -> Entries:
        topology = TridentTopology("t")
        spout = RowsSpout("w: string", {txid: rows[txid] for txid in range(1, batches + 1)}, SpoutType.OPAQUE)
        topology.new_stream("rows", spout).persistent_aggregate(stores.state(), Count(), "n", state_name="count")
        run_all(topology, "in_process", log_dir=str(tmp_path / "log"), history="7d", **conf)
        return stores.copy()

    old = run(1)
    run(2)
    stores.set_back(old, "count")
    with pytest.raises(RewindError, match="the spout of stream 'rows', a RowsSpout, is opaque and does not give"):
        run(2, state_recovery="rewind")


def test_a_store_ahead_of_the_log_is_refused(world: World, tmp_path: Path) -> None:
    world.run(6)
    shutil.copytree(world.log, tmp_path / "copy")
    world.run(15)
    shutil.rmtree(world.log)
    (tmp_path / "copy").rename(world.log)
    why = 'state_recovery="rewind" is refused: the log lacks batches that the store has'
    world.refused(15, why, StartMismatchError)


def test_a_store_of_another_log_is_refused(world: World, tmp_path: Path) -> None:
    world.run(6)
    shutil.rmtree(world.log)
    world.refused(15, "the log is new, and state 'count' has the totals of 6 batches and", StartMismatchError)


def as_failed(old: Entries, txid: int) -> Entries:
    """Return a copy in which the driver of then has begun a later batch."""
    return {
        place: {key: each._replace(txid=txid) if isinstance(each, Sentinel) else each for key, each in entries.items()}
        for place, entries in old.items()
    }


@pytest.mark.parametrize("failed", [False, True])
def test_a_store_of_before_its_totals_were_kept_is_refused(world: World, failed: bool) -> None:
    old, _ = world.set_back(6, 10, "count")
    world.run(12, state_recovery="keep_totals_even_if_wrong")
    world.run(20)
    world.stores.set_back(as_failed(old, 11) if failed else old, "count")
    world.refused(20, "after batch 10 its totals were kept as they were found")


def test_a_store_that_was_emptied_after_it_got_other_partitions_is_made_again(world: World) -> None:
    world.run(6)
    world.partitions = 5
    before = world.run(10)
    world.stores.set_back({}, "count")
    made = written(world.run(10, state_recovery="rewind"), "count")
    assert {key: value.curr for key, value in made.items()} == {
        key: 4 if key == ("a",) else 2 if key == ("b",) else 1 for key in made
    }
    assert before
    world.run(20)
    with trident.open_state(world.topology(20), "count", log_dir=world.log) as state:
        assert state.multi_get(["a", "b", "c"]) == [8, 4, 2]


@pytest.mark.parametrize("failed", [False, True])
def test_a_store_of_before_it_got_other_partitions_is_refused(world: World, failed: bool) -> None:
    old = world.run(6)
    world.partitions = 5
    world.run(10)
    world.stores.set_back(as_failed(old, 7) if failed else old, "count")
    world.refused(10, "after batch 6 it got another number of partitions")


def test_another_number_of_partitions_at_the_same_start_is_refused(world: World) -> None:
    world.set_back(6, 15, "count")
    world.partitions = 5
    world.refused(15, "it has 3 partitions and is declared with 5: rewind first")


@pytest.mark.parametrize("already", [True, False])
def test_batches_of_other_code_are_refused(world: World, already: bool) -> None:
    def declare(aggregate: Any) -> None:
        world.more = lambda world, words: words.map(len_of, "n: bigint").persistent_aggregate(
            world.stores.state(), "n", aggregate, "made"
        )

    declare(Sum())
    old = world.run(6)
    world.run(10)
    declare(Max())
    match = r"declared otherwise than its batches ran .state 'made': 'made' Sum\(n: bigint\) -> Max"
    if already:
        world.run(20, allow_changed_topology=True)
        match = "from batch 11 on 'made' means something else; the batches from 7 on ran other code"
    world.stores.set_back(old, "made")
    world.refused(20, match, allow_changed_topology=True)


def len_of(row: Any) -> list[int]:
    return [len(row["w"])]


def test_values_that_do_not_say_which_batch_wrote_them_are_refused(world: World) -> None:
    world.more = lambda world, words: words.persistent_aggregate(
        world.stores.state("non_transactional"), Count(), "bare"
    )
    world.set_back(6, 10, "bare", allow_inexact=True)
    world.refused(10, "state 'bare' cannot be rewound: its values do not say which batch", allow_inexact=True)


def test_a_transactional_state_that_is_read_is_refused(world: World) -> None:
    def more(world: World, words: Stream) -> None:
        kept = words.group_by("w").persistent_aggregate(
            world.stores.state("transactional"), Count(), "n", state_name="kept"
        )
        kept.new_values_stream().persistent_aggregate(world.stores.state(), Count(), "behind")

    world.more = more
    old, before = world.set_back(6, 20, "behind")
    world.refused(20, "state 'kept' cannot be rewound: the topology reads what it was before each batch")
    world.stores.set_back(before, "behind")
    world.stores.set_back(old, "count")
    assert world.run(20, state_recovery="rewind") == before  # which does not depend on it


def test_a_state_that_forgets_is_refused(tmp_path: Path) -> None:
    def run(**conf: Any) -> None:
        topology = TridentTopology("t")
        words = topology.new_stream("words", FixedBatchSpout("w: string", 1, *[[word] for word in WORDS]))
        words.group_by("w").persistent_aggregate(LRUMemoryMapState(2), Count(), "count")
        run_all(topology, "in_process", log_dir=str(tmp_path / "log"), history="7d", **conf)

    run()
    with pytest.raises(RewindError, match="its store forgets or expires values"):
        run(state_recovery="rewind")
