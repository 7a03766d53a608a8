"""A move of a state: what readers see meanwhile, what is refused, and what becomes of a move that is given up."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from tests.harness.crashing_stores import DictMap
from tests.harness.topology_runs import run_all, start
from tests.replay.set_back import Killed
from trident import TridentCollector, TridentTopology, TridentTuple, forget_keys, move_state, open_state
from trident.errors import (
    ConfigError,
    LogError,
    LogHeldError,
    StartMismatchError,
    StateError,
    StateMovedError,
    StateReadError,
    TopologyChangedError,
    TopologyError,
    UnsupportedOperation,
)
from trident.operations import BaseStateUpdater, Count, Sum
from trident.run import moving
from trident.state import Key, StateSpec, map_state

pytestmark = pytest.mark.slow

WORDS = ["the", "cow", "the", "moon", "the", "end"]


class Listing(DictMap):
    def key_pages(self) -> Any:
        yield list(self.entries)

    def reset(self) -> None:
        self.entries.clear()


def declared(
    state: StateSpec, *words: str, name: str = "words", by: Any = None, partitions: int = 1
) -> TridentTopology:
    topology = TridentTopology(name)
    stream = topology.new_stream("words", FixedBatchSpout("word: string", 2, *([word] for word in words or WORDS)))
    grouped = stream.group_by("word")
    grouped.persistent_aggregate(state, by or Count(), "count").parallelism_hint(partitions)
    return topology


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(tmp_path / "log")


def table(folder: Path, name: str) -> StateSpec:
    return DeltaState.opaque(folder / name)


@pytest.fixture
def old(tmp_path: Path) -> StateSpec:
    return table(tmp_path, "old")


@pytest.fixture
def new(tmp_path: Path) -> StateSpec:
    return table(tmp_path, "new")


def run(topology: TridentTopology, log: str, **conf: Any) -> Any:
    return run_all(topology, "in_process", log_dir=log, **conf)


def rows(topology: TridentTopology, log: str) -> list[Any]:
    with open_state(topology, "count", log_dir=log) as state:
        return sorted(state.get_tuples())


def dying(what: str) -> Any:
    def progress(now: str, done: int, total: int) -> None:
        if now == what:
            raise Killed

    return progress


def test_readers_keep_their_answers_until_the_move_has_ended(log: str, old: StateSpec, new: StateSpec) -> None:
    run(declared(old), log)
    seen: list[tuple[str, list[Any]]] = []
    with open_state(declared(old), "count", log_dir=log) as reader:
        before = sorted(reader.get_tuples())
        moved = move_state(
            declared(old), "count", declared(new), log_dir=log,
            progress=lambda what, done, total: seen.append((what, sorted(reader.get_tuples()))),
        )  # fmt: skip
        assert seen == [(what, before) for what in ("count", "copy", "compare")]
    assert (moved.txid, moved.rows, moved.written) == (3, 4, 4)
    assert rows(declared(new), log) == before
    with pytest.raises(StateReadError, match="the state was moved to its new declaration"):
        rows(declared(old), log)


@pytest.mark.sample(1)
@pytest.mark.parametrize("what", ["count", "copy", "compare"])
def test_a_move_that_is_given_up_leaves_no_trace_for_the_next(
    log: str, old: StateSpec, new: StateSpec, what: str
) -> None:
    run(declared(old), log)
    with suppress(Killed):
        move_state(declared(old), "count", declared(new), log_dir=log, progress=dying(what))
    with pytest.raises(StateMovedError, match="a move into this place has not ended. Run `trident state move` again"):
        start(declared(new), "in_process", log_dir=log, state_recovery="discard_totals")
    with pytest.raises(StateReadError, match="a move into this place has not ended"):
        rows(declared(new), log)
    longer = [*WORDS, "cow", "new"]
    run(declared(old, *longer), log)
    moved = move_state(declared(old), "count", declared(new), log_dir=log)
    assert (moved.txid, moved.rows, moved.written) == (4, 5, 5)
    run(declared(new, *longer, "end"), log)
    assert rows(declared(new), log) == [("cow", 2), ("end", 2), ("moon", 1), ("new", 1), ("the", 3)]


def test_what_a_move_had_copied_is_compared_and_not_written_again(
    log: str, old: StateSpec, new: StateSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "_ROWS", 1)
    run(declared(old), log)
    with suppress(Killed):
        move_state(declared(old), "count", declared(new), log_dir=log, progress=dying("copy"))
    assert move_state(declared(old), "count", declared(new), log_dir=log).written == 3


def test_the_published_table_of_the_new_place_has_all_rows_at_the_next_start(
    log: str, tmp_path: Path, old: StateSpec, new: StateSpec
) -> None:
    from deltalake import DeltaTable

    run(declared(old), log)
    move_state(declared(old), "count", declared(new), log_dir=log)
    run(declared(new), log)
    table = DeltaTable(tmp_path / "new").to_pyarrow_table().to_pylist()
    assert sorted(tuple(row.values()) for row in table) == [("cow", 1), ("end", 1), ("moon", 1), ("the", 3)]


def test_a_map_of_your_own_changes_its_partitions(log: str) -> None:
    stores: dict[tuple[str, int], dict[Any, Any]] = {}

    def of(name: str) -> StateSpec:
        return map_state(lambda conf, partition, count: Listing(stores.setdefault((name, partition), {})))

    run(declared(of("old"), partitions=2), log)
    declarations = declared(of("old"), partitions=2), declared(of("new"), partitions=3)
    assert move_state(declarations[0], "count", declarations[1], log_dir=log).rows == 4
    run(declared(of("new"), *WORDS, "the", "cow", partitions=3), log)
    assert rows(declarations[1], log) == [("cow", 2), ("end", 1), ("moon", 1), ("the", 4)]


def test_a_single_value_moves_to_another_key(log: str, tmp_path: Path) -> None:
    def total(place: str, key: str) -> TridentTopology:
        topology = TridentTopology("t")
        numbers = topology.new_stream("n", FixedBatchSpout("n: bigint", 2, [1], [2], [3]))
        numbers.persistent_aggregate(DeltaState.opaque(tmp_path / place, snapshot_key=key), "n", Sum(), "count")
        return topology

    run(total("old", "one"), log)
    move_state(total("old", "one"), "count", total("new", "other"), log_dir=log)
    with open_state(total("new", "other"), "count", log_dir=log) as state:
        assert state.get() == 6
    run(total("new", "other"), log)
    with pytest.raises(TopologyChangedError, match="declare it with snapshot_key='other'"):
        run(total("new", "one"), log)


class PutOdd(BaseStateUpdater[Any]):
    """Puts values under keys that are equal to each other in a dict."""

    KEYS: ClassVar = [(1,), (1.0,), (True,), (math.nan,), (0.0,), (0,)]

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        state.multi_put(self.KEYS, [f"of {key[0]!r}" for key in self.KEYS])


def test_keys_that_are_equal_in_a_dict_move_and_go_each_for_itself(log: str, old: StateSpec, new: StateSpec) -> None:
    def rows_of(topology: TridentTopology, log: str) -> list[tuple[str, str]]:
        with open_state(topology, "count", log_dir=log) as state:
            return sorted((repr(key), value) for key, value in state.get_tuples())

    def kept(state: StateSpec) -> TridentTopology:
        topology = TridentTopology("odd")
        topology.new_stream("rows", FixedBatchSpout("n: bigint", 1, [1])).partition_persist(
            state, "n", PutOdd(), state_name="count"
        )
        return topology

    run(kept(old), log)
    assert move_state(kept(old), "count", kept(new), log_dir=log).rows == 6
    found = rows_of(kept(new), log)
    assert found == sorted((repr(key), f"of {key!r}") for (key,) in PutOdd.KEYS)
    assert forget_keys(kept(new), "count", [1, 1.0, True], log_dir=log).keys == 3
    assert rows_of(kept(new), log) == [(key, f"of {key}") for key in ("0", "0.0", "nan")]


def test_open_windows_move(log: str, tmp_path: Path) -> None:
    def windows(place: str, *more: int) -> TridentTopology:
        topology = TridentTopology("t")
        numbers = topology.new_stream("n", FixedBatchSpout("n: bigint", 2, *([n] for n in (1, 2, 4, *more))))
        summed = numbers.tumbling_window(4, DeltaState.opaque(tmp_path / place), "n", Sum(), "count", state_name="open")
        summed.persistent_aggregate(DeltaState.opaque(tmp_path / "sums"), "count", Sum(), "sums")
        return topology

    run(windows("old"), log)
    assert move_state(windows("old"), "open", windows("new"), log_dir=log).rows
    run(windows("new", 8, 16), log)
    with open_state(windows("new"), "sums", log_dir=log) as state:
        assert state.get() == 15


def test_a_start_in_another_place_advises_the_move(log: str, old: StateSpec, new: StateSpec) -> None:
    run(declared(old), log)
    move = "if state 'count' was in another place before, move it to this one: trident state move OLD.py:topology count --to"
    with pytest.raises(StartMismatchError, match=f"{move} NEW.py:topology. Else start with a store of this log"):
        run(declared(new), log)
    assert move_state(declared(old), "count", declared(new), log_dir=log).rows == 4
    run(declared(new, *WORDS, "the"), log)
    assert rows(declared(new), log)[-1] == ("the", 4)


def test_a_driver_that_runs_refuses_a_move(log: str, old: StateSpec, new: StateSpec) -> None:
    with start(declared(old), "in_process", log_dir=log) as running:
        running.process_all_available()
        with pytest.raises(LogHeldError, match="already running here"):
            move_state(declared(old), "count", declared(new), log_dir=log)
    assert move_state(declared(old), "count", declared(new), log_dir=log).rows == 4


def _filled(conf: Any, partition: int, count: int) -> Listing:
    return Listing({("a",): 1})


REFUSED: dict[str, tuple[Callable[[Path], TridentTopology], type[Exception], str]] = {
    "another topology": (
        lambda at: declared(table(at, "new"), name="other"), TopologyError, "of two topologies, 'words' and 'other'",
    ),
    "another meaning": (lambda at: declared(table(at, "new"), by=_Longest()), TopologyChangedError, r"Count\(.*\) -> _Longest"),
    "the same place": (lambda at: declared(table(at, "old")), ConfigError, "both declarations have it in the same place"),
    "a memory": (lambda at: declared(MemoryMapState.opaque()), UnsupportedOperation, "is in the memory of the process"),
    "no listing": (
        lambda at: declared(map_state(_dict)), UnsupportedOperation, "a DictMap is not a map that can list its keys",
    ),
    "another log's": (lambda at: declared(table(at, "theirs")), StateError, "it has batch 3 .*; or, if"),
    "another state's": (lambda at: declared(table(at, "foreign")), StateError, "To do: give .* or path$"),
    "rows without a log": (lambda at: declared(map_state(_filled)), StateError, "not empty, it has keys. Nothing was written"),
}  # fmt: skip
"""Moves that are refused: where to, and what is said."""


def _dict(conf: Any, partition: int, count: int) -> DictMap:
    return DictMap({})


class _Longest(Count):
    pass


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_target_is_refused_and_all_goes_on(log: str, tmp_path: Path, old: StateSpec, case: str) -> None:
    run(declared(old), log)
    for name, place in (("words", "theirs"), ("other", "foreign")):
        run(declared(table(tmp_path, place), name=name), str(tmp_path / f"{place}-log"))
    to, error, text = REFUSED[case]
    with pytest.raises(error, match=text):
        move_state(declared(old), "count", to(tmp_path), log_dir=log)
    run(declared(old, *WORDS, "the"), log)
    assert rows(declared(old), log)[-1] == ("the", 4)


def test_a_source_unknown_to_the_log_is_refused(log: str, tmp_path: Path, old: StateSpec, new: StateSpec) -> None:
    with pytest.raises(LogError, match="there is no transaction log"):
        move_state(declared(old), "count", declared(new), log_dir=log)
    run(declared(old), log)
    with pytest.raises(StateReadError, match="it was emptied or moved away"):
        move_state(declared(DeltaState.opaque(tmp_path / "wrong")), "count", declared(new), log_dir=log)
    move_state(declared(old), "count", declared(new), log_dir=log)
    run(declared(new, *WORDS, "the"), log)
    with pytest.raises(StateReadError, match="the state was moved to"):
        move_state(declared(old), "count", declared(DeltaState.opaque(tmp_path / "third")), log_dir=log)


def test_a_target_that_loses_rows_is_found(log: str, old: StateSpec) -> None:
    class Losing(Listing):
        def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
            kept = [pair for pair in zip(keys, values, strict=True) if pair[0] != ("moon",)]
            self.entries.update(kept)

    entries: dict[Any, Any] = {}
    run(declared(old), log)
    with pytest.raises(StateError, match=r"differ: \('moon',\) is OpaqueValue\(.*\) in the one and None in the other"):
        move_state(declared(old), "count", declared(map_state(lambda *_: Losing(entries))), log_dir=log)
    assert rows(declared(old), log)[-1] == ("the", 3)
