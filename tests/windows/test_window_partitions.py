"""Windows and joins in several partitions: what another number of partitions kept is taken over, whatever fails meanwhile.

Batches are committed to stores that crash, as by drivers that were each killed and started again with another number of
partitions. What fires equals a program that was fed each batch once.
"""

import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts import FixedBatchSpout
from tests.harness.crashing_stores import WAYS, DictMap
from tests.harness.forked import exit_code_of
from tests.harness.servers import Server
from tests.harness.topology_runs import RowsState, dict_state, keep, open_view, stream_of
from tests.windows.join_model import CASES, JoinModel
from tests.windows.join_model import model_of as model_of_join
from tests.windows.lives import LEFT, RIGHT, SIZE, SLIDING, WITHIN, move, moving_in
from tests.windows.test_windows_model import CONFIGS, Numbers, examples, in_any_order, ordinate, rows
from tests.windows.window_model import WindowModel, model_of
from trident import Config, Fields, TopologyError, TridentTopology
from trident.arrow import table_of
from trident.engine.fragment_runs import TaskOutput
from trident.engine.worker import Order
from trident.graph import JoinWithinNode, WindowNode
from trident.log.log_reader import LogReader
from trident.operations import Count, Sum
from trident.plan import make_plan
from trident.run.committer import Committer, PartitionCommit
from trident.spout import TransactionAttempt
from trident.state import OpaqueMap
from trident.state.encoding.codec import decode
from trident.state.interfaces import state_of
from trident.state.txid import Txid, Winners
from trident.state.values import OpaqueValue
from trident.steps.failures import StepFailed, TupleErrors
from trident.steps.rows import StepRun
from trident.testing import Faults, FaultyMap
from trident.windows import join_update, window_rows, window_state
from trident.windows.window_partitions import Moment, Now, PartitionPlace, Share, moment_of, together
from trident.windows.window_rows import join_input, window_input
from trident.windows.window_state import DIRECTORY, Directory

FIELDS = Fields("key: string, n: int, at: bigint")
MS = timedelta(milliseconds=1)
COUNTS = st.sampled_from([1, 2, 3])


class Life:
    """A window or a join, `w`, over a store that outlives its drivers."""

    def __init__(self, topology: TridentTopology, kept: RowsState) -> None:
        self.plan, self.kept = make_plan(topology.graph()), kept
        (self.node,) = (one for one in self.plan.commits if isinstance(one, (WindowNode, JoinWithinNode)))
        self.entries: dict[Any, Any] = {}
        self.faults, self.winners = Faults(), Winners()
        self.txid = self.attempt = self.late = 0

    def take_up(self, entries: dict[Any, Any], txid: int) -> None:
        """Go on with what a program kept that committed each batch at the first try."""
        self.entries, self.txid, self.attempt = entries, txid, txid
        for committed in range(1, txid + 1):
            self.winners = self.winners.with_winner(committed, committed)

    def batch(
        self, sides: Sequence[Any], partitions: int, failures: Sequence[Any] = (), now: Now | None = None
    ) -> list[Any]:
        """Commit a batch after attempts that crash at a call of the store, each by a driver of its own; return what fires."""
        self.txid += 1
        causes = []
        for crash, way, count, others in [*failures, (0, "", partitions, None)]:
            sides = sides if others is None else others
            self.faults.clear()
            if crash:
                self.faults.fail(crash, way)
            try:
                self._commit(sides, count, now or Now(0))
                break
            except StepFailed as failed:
                causes.append(failed.failure.cause)
        assert causes == [cause for cause in causes if cause.startswith("InjectedFault")]
        assert len(causes) <= len(failures)
        self.taken = sides
        self.winners = self.winners.with_winner(self.txid, self.attempt)
        return self.kept.batches.get(self.txid, [])

    def _commit(self, sides: Sequence[Any], partitions: int, now: Now) -> None:
        self.attempt += 1
        states = [OpaqueMap(FaultyMap(DictMap(self.entries), self.faults), "w", each) for each in range(partitions)]
        txid = Txid(self.txid, self.attempt, self.winners)
        committer = Committer(self.plan, {"w": states, "kept": [state_of(self.kept)]}, lambda name: None)
        order = Order(TransactionAttempt(self.txid, 0), False, {"w": [txid] * partitions, "kept": [txid]}, now)
        done = committer.commit(order, self.input(sides))
        self.late += done.metrics.get("w/late", 0)

    def input(self, sides: Sequence[Any]) -> TaskOutput:
        """What two tasks send for the batch."""
        run, tables = StepRun(TransactionAttempt(self.txid, 0), TupleErrors(), lambda name: None), []
        for port, side in enumerate(sides):
            for some in (side[: len(side) // 2], side[len(side) // 2 :]):
                table = table_of(FIELDS, some)
                if isinstance(self.node, JoinWithinNode):
                    tables.append(join_input(self.node, port, table))
                else:
                    tables.append(window_input(self.node, table, run))
        return TaskOutput({self.node.id: tables})


FAILURES = st.tuples(st.integers(1, 30), st.sampled_from(WAYS), COUNTS)
BATCHES = st.lists(
    st.tuples(rows, st.integers(-9, 5), COUNTS, st.lists(st.tuples(FAILURES, st.none() | rows), max_size=2)),
    max_size=14,
)


@pytest.mark.sample(2)
@pytest.mark.slow
@examples(15, 500)
@pytest.mark.parametrize("sums", [False, True], ids=["tuples", "combiner"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_window_goes_on_with_any_number_of_partitions(name: str, sums: bool, count: int) -> None:
    @given(life=BATCHES)
    @settings(max_examples=count)
    def lives(life: Any) -> None:
        lived(name, sums, life)

    lives()


def lived(name: str, sums: bool, life: Any) -> None:
    found_in, model, now = windowed(name, sums), model_of(CONFIGS[name], grouped=True), 0

    def shown(numbers: Any) -> Any:
        return numbers if not isinstance(numbers, list) else sum(numbers) if sums else sorted(numbers)

    with (
        patch.object(window_state, "_FAN_IN", 2),
        patch.object(window_state, "MAX_CHUNK_BYTES", 40),
        patch.object(window_rows, "_MANY", 5),
    ):
        for given_rows, wait, partitions, failures in life:
            now, begins_again = now + wait, wait < 0 and CONFIGS[name].by_batch_time
            attempts = [(*failure, None if others is None else [others]) for failure, others in failures]
            fired = found_in.batch([given_rows], partitions, attempts, Now(now, wait < 0))
            found = [(key, ordinate(start), ordinate(end), shown(value)) for key, start, end, value in fired]
            given_up = model.begin_again() if begins_again and isinstance(model, WindowModel) else []
            wanted = [(*head, shown(numbers)) for *head, numbers in [*given_up, *model.take(found_in.taken[0], now)]]
            assert in_any_order(found) == in_any_order(wanted)
    assert found_in.late == len(model.late_rows)


def windowed(name: str, sums: bool) -> Life:
    topology, stream = stream_of(FixedBatchSpout(FIELDS, 1, ("a", 1, 1)))
    aggregator: Any = Sum() if sums else Numbers()
    out = "v" if sums else "v: array<bigint>"
    fired = stream.group_by("key").window(CONFIGS[name], "n", aggregator, out, bounds="start, end", state_name="w")
    return Life(topology, keep(fired))


JOIN_ROW = st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 9), st.none() | st.integers(0, 30))
JOIN_ROWS = st.lists(JOIN_ROW, max_size=5)
SIDES = st.tuples(JOIN_ROWS, JOIN_ROWS)
JOINED = st.lists(st.tuples(SIDES, COUNTS, st.lists(st.tuples(FAILURES, st.none() | SIDES), max_size=2)), max_size=12)


@pytest.mark.sample(1)
@pytest.mark.slow
@examples(15, 500)
@pytest.mark.parametrize("case", CASES)
def test_a_join_goes_on_with_any_number_of_partitions(case: str, count: int) -> None:
    @given(life=JOINED)
    @settings(max_examples=count)
    def lives(life: Any) -> None:
        joined_in_life(case, life)

    lives()


def joined_in_life(case: str, life: Any) -> None:
    found_in, model = joining(case), model_of_join(*CASES[case])
    with (
        patch.object(join_update, "_PANES", 1000),  # a millisecond each, so what comes alone comes at once
        patch.object(window_state, "_FAN_IN", 2),
        patch.object(window_state, "MAX_CHUNK_BYTES", 40),
    ):
        for sides, partitions, failures in life:
            found = found_in.batch(sides, partitions, [(*failure, others) for failure, others in failures])
            assert Counter(found) == Counter(model.take(found_in.taken))
    assert found_in.late == model.late


def joining(case: str = "both outer") -> Life:
    within, delay, types = CASES[case]
    topology = TridentTopology("t")
    left, right = (topology.new_stream(name, FixedBatchSpout(FIELDS, 1, ("a", 1, 1))) for name in "lr")
    out = topology.join_within(
        left, "key", right, "key", "key, l, l_at, r, r_at", times="at", within=within, delay=delay, state_name="w",
        join_type=types,
    )  # fmt: skip
    return Life(topology, keep(out))


def given_in_order(count: int, keys: int = 40) -> list[tuple[str, int, int]]:
    return [(f"k{number % keys}", number, number // 10) for number in range(count)]


@pytest.mark.parametrize("make", [lambda: windowed("tumbling event time", sums=True), joining], ids=["window", "join"])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (3, 2)])
def test_nothing_of_the_other_layout_is_left(make: Callable[[], Life], before: int, after: int) -> None:
    life, came = make(), given_in_order(60)
    for number, count in enumerate([before, before, after]):
        sides = [came[number * 20 : number * 20 + 20]] * (2 if isinstance(life.node, JoinWithinNode) else 1)
        life.batch(sides, count)
    live = {key for key, stored in life.entries.items() if stored.curr is not None and key[0] != "key"}
    places = [PartitionPlace(partition, after) for partition in range(after)]
    own = {place.key("windows") for place in places}
    for place in places:
        directory = Directory.of(life.entries[place.key("windows")].curr)
        own |= {key for runs in directory.panes.values() for run in runs for key in run.keys_in(place)}
    assert live - {DIRECTORY} == own - {DIRECTORY}
    assert len(live) >= 2 * after


def test_a_program_that_knows_one_partition_only_refuses_what_several_keep() -> None:
    life = windowed("tumbling event time", sums=True)
    life.batch([given_in_order(10)], 3)
    version, partitions = decode(life.entries[DIRECTORY].curr)
    assert (version, partitions) == (2, 3)  # a program that knows version 1 reports that a newer one wrote it


def test_a_directory_that_the_store_lost_is_missed() -> None:
    life = windowed("tumbling event time", sums=True)
    life.batch([given_in_order(10)], 3)
    del life.entries[PartitionPlace(1, 3).key("windows")]
    said = r"read \('windows', 3, 1\) of a window: it is not there, but .* in 3 partitions"
    with pytest.raises(AssertionError, match=said):
        life.batch([given_in_order(10)], 3)


def test_a_count_window_of_each_key_commits_the_partitions_that_have_rows() -> None:
    life = windowed("tumbling count", sums=True)
    life.batch([[("a", 1, 1)]], 5)
    assert [key for key in life.entries if key[0] != "\x00trident-sentinel"] == [("key", "a")]
    assert [key for *key, _ in life.batch([[("a", 2, 2), ("a", 3, 3)]], 2)] != []


def test_the_commit_of_a_partition_ends_as_its_caller_says(monkeypatch: pytest.MonkeyPatch) -> None:
    life, ended = windowed("tumbling event time", sums=True), list[Txid]()
    run = StepRun(TransactionAttempt(1, 0), TupleErrors(), lambda name: None)
    state, tables = OpaqueMap(DictMap(life.entries)), life.input([[("a", 1, 1), ("a", 2, 9)]]).sinks[life.node.id]
    facts: Any = state.facts
    monkeypatch.setattr(state, "facts", replace(facts, stage=ended.append))
    commit = PartitionCommit(life.node, state, Txid(1), Share(tables, moment_of(life.node, tables), run), stages=True)
    commit.run()
    assert commit.values is not None
    assert (commit.values.column("v").to_pylist(), ended) == ([1], [Txid(1)])
    state.commit(1)  # it had not ended yet


def test_the_moments_of_pieces_make_that_of_the_batch() -> None:
    life, generator = windowed("sliding event time", sums=False), random.Random(5)
    rows_ = [("a", 1, generator.randrange(1000)) for _ in range(50)]
    run = StepRun(TransactionAttempt(1, 0), TupleErrors(), lambda name: None)
    assert isinstance(life.node, WindowNode)
    pieces = [window_input(life.node, table_of(FIELDS, rows_[at : at + 7]), run) for at in range(0, 50, 7)]
    whole = moment_of(life.node, pieces, Now(9))
    assert together([moment_of(life.node, [piece], Now(9)) for piece in pieces]) == whole
    assert (whole.given, whole.reached, whole.now) == (50, (max(at for *_, at in rows_), None), Now(9))
    assert whole.panes == tuple(sorted({at // 2 for *_, at in rows_}))
    assert together([Moment(0), Moment(2, (3, None)), Moment(1, (None, 4))]) == Moment(3, (3, 4))


def test_the_hint_or_the_state_says_how_many() -> None:
    def partitions(hint: int | None = None, state: Any = None, grouped: bool = True) -> int:
        topology, stream = stream_of(FixedBatchSpout(FIELDS, 1, ("a", 1, 1)))
        over: Any = stream.group_by("key") if grouped else stream
        fired = over.tumbling_window(timedelta(seconds=1), *([] if state is None else [state]), Count(), "c")
        if hint is not None:
            fired.parallelism_hint(hint)
        count = make_plan(topology.graph()).partitions["c-window"]
        assert f"Count() -> c; {count} partition" in topology.explain()
        assert topology.describe()[0]["partitions"] == count
        return count

    assert [partitions(), partitions(4), partitions(4, grouped=False)] == [1, 4, 1]
    assert partitions(4, dict_state({}, partitions=2)) == 2
    with pytest.raises(TopologyError, match="insists on 2 partitions, but a window of a whole stream has one"):
        partitions(state=dict_state({}, partitions=2), grouped=False)


GOLDEN = Path(__file__).parent / "golden"
"""What windows and a join of one partition kept after three batches, written by the program that first kept it so."""

EARLIER = {"window": "sliding event time", "sessions": "sessions"}


def golden(name: str, version: int = 1) -> dict[Any, OpaqueValue]:
    lines = (GOLDEN / f"{name}.v{version}.txt").read_text("ascii").splitlines()
    pairs = ([decode(bytes.fromhex(part)) for part in line.split()] for line in lines)
    return {key: OpaqueValue(*stored) for key, stored in pairs}


def golden_batch(number: int) -> list[tuple[str, int, int]]:
    return [("abcdefg"[n % 7], n, n // 2 + n * 7 % 5) for n in range(number * 10, number * 10 + 10)]


@pytest.mark.parametrize("name", ["window", "sessions", "join"])
def test_one_partition_keeps_what_an_earlier_version_kept(name: str) -> None:
    life = joining() if name == "join" else windowed(EARLIER[name], sums=True)
    for number in range(3):
        life.batch([golden_batch(number)] * (1 + (name == "join")), 1)
    assert life.entries == golden(name, {"window": 1, "sessions": 2, "join": 3}[name])


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("name", EARLIER)
def test_a_window_that_an_earlier_version_kept_goes_on(name: str, partitions: int) -> None:
    life, model = windowed(EARLIER[name], sums=True), model_of(CONFIGS[EARLIER[name]], grouped=True)
    life.take_up(golden(name), 3)
    for number in range(3):
        model.take(golden_batch(number), 0)
    for number in range(3, 6):
        fired = life.batch([golden_batch(number)], partitions, [(9, "middle", 2, None)] if number == 3 else [])
        found = [(key, ordinate(start), ordinate(end), value) for key, start, end, value in fired]
        wanted = [(*head, sum(numbers)) for *head, numbers in model.take(golden_batch(number), 0)]
        assert in_any_order(found) == in_any_order(wanted) != []


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_join_that_an_earlier_version_kept_goes_on(partitions: int) -> None:
    life, model = joining(), JoinModel(-5, 5, (3, 3), (True, True))
    life.take_up(golden("join", 2), 3)
    came = [model.take([golden_batch(number)] * 2) for number in range(3)]
    pairs = {row for rows_ in came for row in rows_}
    for number in range(3, 9):
        pairs.update(model.take([golden_batch(number)] * 2))
        found = life.batch([golden_batch(number)] * 2, partitions, [(9, "middle", 2, None)] if number == 3 else [])
        assert found
        assert {row for row in found if None not in row} <= pairs
        pairs -= set(found)
    assert {row for row in pairs if None not in row} == {row for rows_ in came for row in rows_ if None not in row}


def test_a_join_that_kept_its_watermarks_apart_is_refused_by_name() -> None:
    life = joining()
    life.take_up(golden("join", 1), 3)
    with pytest.raises(AssertionError, match=r"it holds \(key: string; in panes of 1000\), but .* another state_name"):
        life.batch([golden_batch(3)] * 2, 1)


DEATHS = [(1, "batch", 2), (3, "before", 2), (3, "after", 4), (2, "after", 1)]
"""Partitions, and how the driver dies: most of them while it moves what another number of partitions kept."""


@pytest.mark.long
@pytest.mark.slow
def test_drivers_that_are_killed_while_they_move_a_window_leave_it_whole(redis_server: Server, tmp_path: Path) -> None:
    assert moved_by(DEATHS, f"redis://{redis_server.address}/0", tmp_path) == len(DEATHS)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_drivers_that_are_killed_anywhere_leave_a_window_whole(
    seed: int, redis_server: Server, postgres_server: Server, tmp_path: Path
) -> None:
    chosen = random.Random(seed)
    deaths = [(chosen.randint(1, 4), chosen.choice(["before", "after"]), chosen.randint(1, 5)) for _ in range(8)]
    postgres = f"postgresql://trident@127.0.0.1:{postgres_server.port}/postgres"
    address = chosen.choice([f"redis://{redis_server.address}/0", postgres])
    assert moved_by(deaths, address, tmp_path) > 0


def moved_by(deaths: Sequence[tuple[int, str, int]], address: str, folder: Path) -> int:
    """Let drivers die one after the other, and the last one end; compare what fired with the models. Return how many died."""
    died = 0
    for partitions, *death in [*deaths, (2,)]:
        code = exit_code_of(move, folder, address, partitions, *death)
        assert code in ((-signal.SIGKILL, 0) if death else (0,))
        died += code != 0
    state = LogReader(folder / "log").refresh()
    assert (state.txid, state.layouts["w"]) == (len(LEFT) // SIZE, (2, "opaque"))
    within = [one // timedelta(milliseconds=1) for one in WITHIN]
    windows = WindowModel(SLIDING, grouped=True)
    joins = JoinModel(within[0], within[1], (4, 9), (True, True))
    sums, times = Counter[tuple[str, int]](), Counter[tuple[Any, Any]]()
    for at in range(0, len(LEFT), SIZE):
        for key, _, end, numbers in windows.take(LEFT[at : at + SIZE], 0):
            sums[key, end] += sum(numbers)
        times.update((row[1], row[3]) for row in joins.take([LEFT[at : at + SIZE], RIGHT[at : at + SIZE]]))
    graph = moving_in(folder, address, 2).graph()
    views = [open_view(graph, Config(), name, partial(state.snapshot, name)) for name in ("sums", "times")]
    found = [{row[:2]: row[2] for row in view.get_tuples()} for view in views]
    for view in views:
        view.close()
    assert {(key, ordinate(end)): total for (key, end), total in found[0].items()} == dict(sums)
    of_pairs = [{pair: each for pair, each in one.items() if None not in pair} for one in (found[1], times)]
    assert of_pairs[0] == of_pairs[1]
    assert set(found[1].values()) == {1}
    return died
