"""Topologies with one mistake each, as users make them; `simulate` must find every one."""

import itertools
import random
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from states.memory import MemoryMapState
from tests.harness.crashing_stores import DictMap
from tests.harness.topology_runs import RowsSpout
from tests.testing.mutated_classes import mutated
from trident import TridentTopology
from trident.errors import FencedError
from trident.operations import CombinerAggregator, Count, Sum
from trident.spout import SpoutType
from trident.state import Key, OpaqueValue, Sentinel, StateSpec, map_state
from trident.state.sentinel import is_sentinel_key  # noqa: F401  wrong maps use it
from trident.stream import Stream
from trident.tuples import TridentCollector, TridentTuple

ROWS = [("the", 2.0), ("cow", 7.0), ("the", 4.0), ("moon", 1.0), ("the", 9.0), ("cow", 5.0), ("a", 3.0), ("moon", 8.0)]
FIELDS = "word: string, weight: double"


def stream_of(topology: TridentTopology, promise: SpoutType = SpoutType.OPAQUE) -> Stream:
    return topology.new_stream("rows", RowsSpout(FIELDS, {}, promise))


def counted(spec: StateSpec, promise: SpoutType = SpoutType.OPAQUE) -> TridentTopology:
    topology = TridentTopology("mistaken")
    stream_of(topology, promise).group_by("word").persistent_aggregate(spec, Count(), "count")
    return topology


def summed(function: Callable[[str], float], type_: str = "bigint") -> TridentTopology:
    topology = TridentTopology("mistaken")
    made = stream_of(topology).each("word", function, f"number: {type_}")
    made.group_by("word").persistent_aggregate(MemoryMapState(), "number", Sum(), "sum")
    return topology


def aggregated(aggregator: Any, field: str) -> TridentTopology:
    """Aggregate the weights by word."""
    topology = TridentTopology("mistaken")
    stream_of(topology).group_by("word").persistent_aggregate(MemoryMapState(), "weight", aggregator, field)
    return topology


def updated(
    spec: Any, updater: Any, state: str, fields: str | list[str] = "word", promise: SpoutType = SpoutType.OPAQUE
) -> TridentTopology:
    topology = TridentTopology("mistaken")
    stream_of(topology, promise).partition_persist(spec, fields, updater, state_name=state)
    return topology


NUMBERS = itertools.count()


def with_a_clock(word: str) -> int:
    return int(time.time())


def with_random_numbers(word: str) -> float:
    return random.random()


def with_a_global_counter(word: str) -> int:
    return next(NUMBERS)


def noted(notes: list[str], word: str) -> int:
    notes.append(word)
    return len(word)


def with_a_counter_of_its_own() -> TridentTopology:
    """The counter begins again with each run, so that two runs without faults agree."""
    numbers = Counts[str]()

    def number(word: str) -> int:
        numbers[word] += 1
        return numbers[word]

    return summed(number)


class Mean(CombinerAggregator[float]):
    """The mean of two means, which is not the mean of all."""

    def init(self, tuple: TridentTuple) -> float:
        return float(tuple[0])

    def combine(self, val1: float, val2: float) -> float:
        return (val1 + val2) / 2

    def zero(self) -> float | None:
        return None


class Bag(CombinerAggregator[list[float]]):
    """A list of weights, whose zero is one list for all, to which `combine` appends."""

    nothing: list[float]

    def __init__(self) -> None:
        self.nothing = []

    def init(self, tuple: TridentTuple) -> list[float]:
        return self._with(self.nothing, [float(tuple[0])])

    def combine(self, val1: list[float], val2: list[float]) -> list[float]:
        return self._with(val1, val2)

    def zero(self) -> list[float]:
        return self.nothing

    @staticmethod
    def _with(bag: list[float], more: list[float]) -> list[float]:
        bag.extend(more)
        return bag


class AddCounts:
    """Adds to counts, in an updater of its own: a right one."""

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        counts = Counts((row[0],) for row in tuples)
        before = state.multi_get(list(counts))
        state.multi_put(list(counts), [(old or 0) + more for old, more in zip(before, counts.values(), strict=True)])


class ToList(AddCounts):
    """Sends the words to a list, which stands for a mail server, and counts them."""

    def __init__(self, sent: list[str]) -> None:
        self.sent = sent

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        self.sent.extend(row[0] for row in tuples)
        super().update_state(state, tuples, collector)


class PastTheRule:
    """Adds to a total for all words behind the back of its state."""

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        backing = state.map_state.backing
        (total,) = backing.multi_get([("all",)])
        new = (0 if total is None else total.curr) + len(tuples)
        backing.multi_put([("all",)], [OpaqueValue(0, -1, None, new)])


def added(old: Any, value: Any) -> Any:
    return value._replace(curr=value.curr + old.curr) if isinstance(old, OpaqueValue) else value


GET, PAIRS = "self.entries.get(key)", "zip(keys, values, strict=True)"
PUT = f"self.entries.update({PAIRS})"
MADE = "self.gets: list[list[Key]] = []"
KEEPS = (MADE, f"{MADE}\n        self.kept: dict[Key, Any] = {{}}")  # what a wrong one remembers
WRONG_MAPS: dict[str, tuple[tuple[str, str], ...]] = {
    "forgets a put": ((PAIRS, f"pair for at, pair in enumerate({PAIRS}) if at != 1"),),  # the second one of its batch
    "reads stale values": (  # but its sentinels are right
        KEEPS,
        (GET, f"({GET} if key not in self.entries or is_sentinel_key([key]) else self.kept.setdefault(key, {GET}))"),
    ),
    "adds": ((PAIRS, f"(key, added({GET}, value)) for key, value in {PAIRS}"),),
    "stops in the middle": ((PAIRS, "zip(keys[:2], values[:2], strict=True)"),),
    "writes late": (  # with the next put, so that a crash loses it
        KEEPS, (GET, f"self.kept.get(key, {GET})"),
        (PUT, f"if is_sentinel_key(keys):\n            {PUT}\n            return\n"
              f"        self.entries.update(self.kept)\n        self.kept = dict({PAIRS})"),
    ),
}  # fmt: skip


class UnfencedMap(DictMap):
    """Refuses the sentinel of a driver that was replaced, but none of its puts."""

    def read_sentinel(self) -> Sentinel | None:
        found: Sentinel | None = self.entries.get(("sentinel",))
        return found

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        found = self.read_sentinel()
        if found is not None and found.attempt > sentinel.attempt and not force:
            raise FencedError("move the sentinel", str(sentinel), str(found))
        self.entries[("sentinel",)] = sentinel

    def key_pages(self) -> Iterator[Sequence[Key]]:
        yield [key for key in self.entries if key != ("sentinel",)]


def over(kind: str | type[DictMap]) -> Callable[[], TridentTopology]:
    """Return what declares a word count over maps of a class, or over wrong ones, with data of its own."""
    made = (
        mutated(globals(), DictMap, kind.title().replace(" ", ""), *WRONG_MAPS[kind]) if isinstance(kind, str) else kind
    )

    def declare() -> TridentTopology:
        data: dict[Key, Any] = {}
        return counted(map_state(lambda conf, partition, partitions: made(data)))

    return declare


class CountingState:
    """Counts each word, also those of a batch that it has counted before."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def begin_commit(self, txid: int) -> None:
        """Nothing is remembered of a batch: that is the mistake."""

    def commit(self, txid: int) -> None:
        """Everything is written."""

    def get_tuples(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.data.items())


class InPlaceState(CountingState):
    """Keeps the list before the batch beside the list after it, but appends in place: both are the same list."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(data)
        self.txid = 0

    def begin_commit(self, txid: int) -> None:
        self.txid = int(txid)

    def add(self, word: str, more: list[float]) -> None:
        written, before, after = self.data.get(word, (0, [], []))
        items = before if written == self.txid else after
        items.extend(more)
        self.data[word] = (self.txid, items, items)

    def get_tuples(self) -> Iterator[tuple[Any, ...]]:
        return ((word, after) for word, (_, _, after) in self.data.items())


class CountWords:
    def update_state(self, state: CountingState, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        for row in tuples:
            state.data[row[0]] = state.data.get(row[0], 0) + 1


class AddWeights:
    def update_state(self, state: InPlaceState, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        for word, weight in tuples:
            state.add(word, [weight])


class OwnFactory:
    """Opens a state of a class over data of its own."""

    def __init__(self, kind: type[CountingState]) -> None:
        self.made, self.data = kind, dict[str, Any]()

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> CountingState:
        return self.made(self.data)
