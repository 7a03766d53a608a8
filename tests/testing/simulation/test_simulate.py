"""simulate: every mistake that it is for is found, what is right gives no alarm, and a failing seed is small and repeatable."""

import math
from collections.abc import Callable
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest

from states.kafka import KafkaTopicState
from states.memory import MemoryMapState
from states.memory.state import MemoryBackingMap
from states.redis import RedisState
from tests.harness.crashing_stores import DictMap
from tests.harness.topology_runs import RowsState
from tests.run.random_topologies import Random
from tests.testing.simulation import mistaken_topologies as mistaken
from tests.testing.simulation import right_topologies as right
from tests.testing.simulation.mistaken_topologies import ROWS
from trident import TridentTopology
from trident.errors import BatchFailedError, ConfigError, InexactPairingError, TridentError
from trident.log.log_interface import MemoryLog
from trident.run import recovery
from trident.spout import SpoutType
from trident.state import Key, OpaqueValue, StateSpec, map_commits, map_state
from trident.testing import SimulationFailed, simulate
from trident.testing.simulation.compared_values import contents_of, differences
from trident.testing.simulation.fault_plan import FAULT_KINDS

pytestmark = pytest.mark.slow

Declared = TridentTopology | Callable[[], TridentTopology]
INEXACT = {"allow_inexact": True}
BARE_VALUES, WORD_COUNT = (
    mistaken.counted(MemoryMapState.non_transactional()),
    mistaken.counted(MemoryMapState.opaque()),
)
LIST_OUTSIDE = mistaken.updated(MemoryMapState(), mistaken.ToList([]), "count")
PAST_THE_RULE = mistaken.updated(MemoryMapState(), mistaken.PastTheRule(), "totals")


def own_state(kind: Any, updater: Any, name: str) -> TridentTopology:
    fields = ["word", "weight"] if kind is mistaken.InPlaceState else "word"
    return mistaken.updated(StateSpec(mistaken.OwnFactory(kind)), updater, name, fields)


COUNTS_REPLAYS = partial(own_state, mistaken.CountingState, mistaken.CountWords(), "count")
CHANGED_IN_PLACE = partial(own_state, mistaken.InPlaceState, mistaken.AddWeights(), "bags")
MISTAKES: dict[str, tuple[Declared, str, dict[str, Any]]] = {
    "a clock": (mistaken.summed(mistaken.with_a_clock), "without any fault", {}),
    "random numbers": (mistaken.summed(mistaken.with_random_numbers, "double"), "without any fault", {}),
    "a global counter": (mistaken.summed(mistaken.with_a_global_counter), "without any fault", {}),
    "a counter of its own": (mistaken.with_a_counter_of_its_own, "state 'sum': .*expected", {}),
    "a mean of means": (mistaken.aggregated(mistaken.Mean(), "mean: double"), "This happens without any fault", {}),
    "a zero that changes": (mistaken.aggregated(mistaken.Bag(), "bag: array<double>"), "'bag': .*in one batch", {}),
    "a list outside": (LIST_OUTSIDE, "outside of states, ToList.sent: expected", {}),
    "a list in a partial": (mistaken.summed(partial(mistaken.noted, [])), "outside of states, .*given: expected", {}),
    "a put past the rule": (PAST_THE_RULE, "state 'totals': .*expected", {}),
    "a map that forgets a put": (mistaken.over("forgets a put"), "This happens without any fault", {}),
    "a map that reads stale values": (mistaken.over("reads stale values"), "state 'count'", {}),
    "a map that adds": (mistaken.over("adds"), "state 'count'", {}),
    "a map that stops in the middle": (mistaken.over("stops in the middle"), "This happens without any fault", {}),
    "a map that writes late": (mistaken.over("writes late"), "state 'count'", {}),
    "a map that does not fence": (mistaken.over(mistaken.UnfencedMap), "state 'count': .*expected", {}),
    "a state that counts replays": (COUNTS_REPLAYS, "state 'count': .*expected", {}),
    "a list changed in place": (CHANGED_IN_PLACE, "state 'bags': .*expected", {}),
    "bare values": (BARE_VALUES, "state 'count': .*expected", INEXACT),
    "transactional values": (mistaken.counted(MemoryMapState.transactional()), "state 'count': .*expected", INEXACT),
}

RIGHT: dict[str, tuple[Declared, dict[str, Any]]] = {
    "word count": (WORD_COUNT, {}),
    "word count in Redis": (mistaken.counted(RedisState.opaque(right.REDIS, cache=100)), {}),
    "transactional word count": (mistaken.counted(MemoryMapState.transactional(), SpoutType.TRANSACTIONAL), {}),
    "a map of two methods": (right.over_a_map_of_two_methods, {}),
    "several states": (right.several_states(), {}),
    "an updater and a query": (right.an_updater_and_a_query(), {"same_batches": True}),
    "two streams": (right.two_streams(), {}),
    "windows": (right.windows(), {}),
    "a state of its own": (right.a_state_of_its_own, {}),
}

BROKEN_RULES: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "values of three fields": (OpaqueValue, "stands_before", lambda one, txid, winners: one.txid < txid),
    "a log that does not fence": (MemoryLog, "check_owner", lambda log: None),
    "a store that does not fence": (MemoryBackingMap, "_check_fence", lambda store, doing, keys: None),
    "no comparison at a start": (recovery, "check_sentinel", lambda *given: None),
    "no comparison at a commit": (map_commits, "check_sentinel", lambda *given: None),
}


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str) -> None:
    declared, said, settings = MISTAKES[name]
    with pytest.raises(SimulationFailed, match=said):
        simulate(declared, ROWS, seeds=300, **settings)


def rows_for(name: str) -> Any:
    return {"rows": ROWS, "more": ROWS[:5]} if name == "two streams" else ROWS


@pytest.mark.sample(2)
@pytest.mark.parametrize("seeds", [15, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_gives_no_alarm(name: str, seeds: int) -> None:
    declared, settings = RIGHT[name]
    assert simulate(declared, rows_for(name), seeds=seeds, **settings).seeds == seeds


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_a_random_topology_gives_no_alarm(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowsState, "get_tuples", lambda state: iter(state.rows), raising=False)

    def declare() -> TridentTopology:
        topology = TridentTopology("random")
        Random(topology, seed)
        return topology

    case = Random(TridentTopology("random"), seed)
    sources = {node.id for node in declare().graph().spouts()}
    rows = {one.stream.node_id: [*chain(*one.batches)] for one in case.streams if one.stream.node_id in sources}
    assert simulate(declare, rows, seeds=15, same_batches=True).seeds == 15


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", BROKEN_RULES)
def test_a_rule_of_production_that_is_switched_off_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BROKEN_RULES[name])
    with pytest.raises(SimulationFailed):
        simulate(WORD_COUNT, ROWS, seeds=300)


def test_no_rows_are_no_batches() -> None:
    report = simulate(right.two_streams(), {}, seeds=3)
    assert (report.seeds, report.batches, report.faults) == (3, 0, {})
    assert str(report).endswith("met: no fault")


@pytest.mark.long
def test_each_kind_of_fault_is_met_and_only_those_that_are_asked_for() -> None:
    assert set(simulate(WORD_COUNT, ROWS, seeds=40).faults) == set(FAULT_KINDS)
    report = simulate(WORD_COUNT, ROWS, seeds=40, faults=["pause"])
    assert (list(report.faults), report.seeds) == (["pause"], 40)
    assert report.attempts > report.batches >= 40


def failure(**settings: Any) -> SimulationFailed:
    with pytest.raises(SimulationFailed) as raised:
        simulate(BARE_VALUES, ROWS, faults=["crash"], allow_inexact=True, **settings)
    return raised.value


def test_a_failing_run_is_told_as_small_as_it_can_be() -> None:
    lines = str(failure()).splitlines()
    assert lines[1] == "  state 'count': ('moon',): expected 1, found 2"
    assert lines[2].endswith("1 of 8 rows of stream 'rows':")
    assert lines[3] == "  rows: [('moon', 8.0)]"
    assert lines[4] == "  batch 1, attempt 1: rows 0 to 0 of stream 'rows'"
    assert lines[5].startswith("  batch 1, attempt 1: the driver crashes after ")
    assert lines[6:] == [
        "  driver 2 takes over",
        "  batch 1, attempt 2: rows 0 to 0 of stream 'rows'",
        "  batch 1, attempt 2: committed",
        f"Run it again: simulate(topology, rows, seed={failure().seed}, faults=['crash'], allow_inexact=True)",
    ]


def test_a_seed_brings_the_same_run_again() -> None:
    first = failure()
    again = failure(seed=first.seed)
    assert (again.seed, again.trace, str(again)) == (first.seed, first.trace, str(first))


def test_a_single_seed_that_is_right_tells_what_happened() -> None:
    report = simulate(WORD_COUNT, ROWS, seed=3)
    assert report.seeds == 1
    assert report.trace[0].startswith("batch 1, attempt 1: rows 0 to ")
    assert report.trace[-1].endswith("committed")
    assert str(report).splitlines()[0].startswith("1 runs, ")


def test_a_pause_in_a_commit_is_a_crash_where_no_store_fences_the_sleeper() -> None:
    report = simulate(right.over_a_map_of_two_methods, ROWS, seeds=40)
    (note,) = report.notes
    assert "the store of 'count' has no move_sentinel" in note
    assert note in str(report)
    assert simulate(WORD_COUNT, ROWS, seeds=5).notes == ()


def test_what_is_ignored_is_not_compared() -> None:
    assert simulate(LIST_OUTSIDE, ROWS, seeds=30, ignore=["ToList.sent"]).seeds == 30
    assert simulate(BARE_VALUES, ROWS, seeds=30, ignore=["count"], allow_inexact=True).seeds == 30


def test_what_may_depend_on_the_batches_is_compared_with_the_same_batches() -> None:
    with pytest.raises(SimulationFailed, match="same_batches=True"):
        simulate(right.an_updater_and_a_query(), ROWS, seeds=30)


def test_floats_are_equal_up_to_rounding() -> None:
    wanted = {"sums": {"a": 0.3, "b": float("nan"), "c": [1.0, {"d": 2.0}], "e": "text"}}
    assert differences(wanted, {"sums": {"a": 0.1 + 0.2, "b": float("nan"), "c": [1.0, {"d": 2.0}], "e": "text"}}) == []
    assert differences(wanted, {"sums": {**wanted["sums"], "a": 0.31}}) == ["sums: 'a': expected 0.3, found 0.31"]
    assert differences(wanted, {}) == [
        "sums: 'a': expected 0.3, found nothing; 'b': expected nan, found nothing; 'c': expected [1.0, {'d': 2.0}], found "
        "nothing; 'e': expected 'text', found nothing"
    ]


KEPT: dict[Key, Any] = {}
LOOKED_UP = {"the": 1, "cow": 2}


def open_kept(conf: Any, partition: int, partitions: int) -> DictMap:
    return DictMap(KEPT)


def test_the_data_of_a_map_in_this_process_are_after_a_run_what_they_were_before() -> None:
    assert simulate(mistaken.counted(map_state(open_kept)), ROWS, seeds=20).seeds == 20
    assert KEPT == {}


def looked_up(word: str) -> int:
    return LOOKED_UP.get(word, 0)


def test_a_table_to_look_up_is_no_alarm() -> None:
    assert simulate(mistaken.summed(looked_up), ROWS, seeds=20).seeds == 20


class Unlisted(mistaken.CountingState):
    """It cannot be listed."""

    get_tuples: Any = None


def raise_at_the_cow(word: str) -> int:
    if word == "cow":
        raise ValueError("no cows")
    return 1


HIDDEN: tuple[dict[Key, Any]] = ({},)  # in a tuple, where the simulation does not look for data
NOT_EMPTY = mistaken.counted(map_state(lambda conf, partition, partitions: DictMap(HIDDEN[0])))
TOPIC = mistaken.updated(KafkaTopicState.transactional("no-such-host:9092", "out"), mistaken.CountWords(), "sent")
UNLISTED = own_state(Unlisted, mistaken.CountWords(), "count")
WRONG_ROW = [{"word": "a", "weight": 1.0}, {"word": "b", "weight": "x"}]
REFUSED: dict[str, tuple[Declared, Any, dict[str, Any], type[Exception], str]] = {
    "a kind of fault": (WORD_COUNT, ROWS, {"faults": ["fire"]}, ConfigError, r"faults \['fire'\]: use some of 'crash'"),
    "an engine": (WORD_COUNT, ROWS, {"engine": "spark"}, ConfigError, "engine: a simulation sets that itself"),
    "a stream": (WORD_COUNT, {"lines": ROWS}, {}, ConfigError, r"rows of \['lines'\], but the .* streams \['rows'\]"),
    "a list for two": (right.two_streams(), ROWS, {}, ConfigError, r"the streams \['rows', 'more'\]: give a dict"),
    "a row": (
        WORD_COUNT, WRONG_ROW, {}, TridentError,
        "simulate, stream 'rows': row 1: 'x' is not of type double, that of field 'weight'",
    ),
    "a pairing that is not exact": (BARE_VALUES, ROWS, {}, InexactPairingError, "non-transactional"),
    "a state that cannot be listed": (
        UNLISTED, ROWS, {}, ConfigError, r"state 'count' \(Unlisted\) cannot be compared: it has no get_tuples\(\)"
    ),
    "a store that is no map": (TOPIC, ROWS, {}, ConfigError, "state 'sent' of a _TopicFactory cannot be simulated"),
    "a store that is not empty": (NOT_EMPTY, ROWS, {}, ConfigError, "give simulate a function that declares the topology"),
    "code that raises": (mistaken.summed(raise_at_the_cow), ROWS, {}, BatchFailedError, "no cows"),  # as it is
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_simulated_is_refused(name: str) -> None:
    declared, rows, settings, error, said = REFUSED[name]
    with pytest.raises(error, match=said):
        simulate(declared, rows, **settings)


def test_a_state_that_cannot_be_listed_may_be_ignored() -> None:
    assert simulate(UNLISTED, ROWS, seeds=3, ignore=["count"]).seeds == 3


def test_keys_of_several_types_are_several() -> None:
    def contents(rows: list[Any]) -> Any:
        writer = SimpleNamespace(offers=lambda name: True)
        view = SimpleNamespace(get_tuples=lambda: iter(rows))
        opened: Any = SimpleNamespace(view=lambda name: view, states={"s": [writer]})
        node: Any = SimpleNamespace(name="s", key_fields=(), value=())
        return {"s": contents_of(opened, node)}

    one, other = contents([(1, "a"), (1.0, "b"), (math.nan, 1)]), contents([(1.0, "a"), (1, "b"), (float("nan"), 1)])
    assert differences(one, one) == []
    assert differences(one, other) == ["s: (1,): expected 'a', found 'b'; (1.0,): expected 'b', found 'a'"]


class Tired:
    """Raises after a few more calls than a run without faults makes."""

    def __init__(self) -> None:
        self.calls = 0

    def length(self, word: str) -> int:
        self.calls += 1
        if self.calls > len(ROWS):
            raise ValueError("tired")
        return len(word)


def tired() -> TridentTopology:
    return mistaken.summed(Tired().length)


def test_what_user_code_raises_at_a_replay_is_a_failure_of_its_seed() -> None:
    with pytest.raises(SimulationFailed, match="the topology ended: BatchFailedError: .*tired"):
        simulate(tired, ROWS, seeds=50)
