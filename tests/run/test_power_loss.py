"""What a power loss leaves of the log: what was synced, with or without any of the records after it."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pyarrow as pa
import pytest

from spouts import FixedBatchSpout
from tests.harness.crashing_stores import DictMap, WithoutAttempts
from tests.harness.topology_runs import OneSpout, counted, dict_state, start
from trident import Fields, TridentTopology
from trident.channel import Clock
from trident.log import log_address
from trident.log.file_log import FileLog, LogFile
from trident.log.framing import read_frames
from trident.log.log_reader import LogReader
from trident.log.records import DefineRecord
from trident.operations import Count
from trident.spout.interfaces import BatchTraits, Definition, SpoutType, TransactionAttempt
from trident.state import CachedMap, MicroBatchIBackingMap, ReadThroughMap, SerializedMap, StateSpec, map_state


class SyncedFile(LogFile):
    """A file that knows how much of it is durable, and how often it was synced."""

    durable: ClassVar[dict[str, int]] = {}
    before_sync: ClassVar[list[Callable[[], None]]] = []
    syncs: ClassVar[int] = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._name, self._written = path.name.removesuffix(".tmp"), 0

    def write(self, data: bytes) -> None:
        super().write(data)
        self._written += len(data)

    def sync(self) -> None:
        while self.before_sync:
            self.before_sync.pop()()
        super().sync()
        SyncedFile.syncs += 1
        self.durable[self._name] = self._written


class SyncedLog(FileLog):
    file_type = SyncedFile


@pytest.fixture(autouse=True)
def synced() -> Iterator[None]:
    SyncedFile.durable.clear()
    SyncedFile.before_sync.clear()
    SyncedFile.syncs = 0
    with mock.patch.object(log_address, "FileLog", SyncedLog):
        yield


class GrowingSpout(OneSpout):
    """Transactional: a definition names its words. What the next one names depends on when it is asked."""

    fields = Fields("word: string")

    def __init__(self, batches: Mapping[int, list[str]]) -> None:
        self.batches = batches

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        return self.batches.get(txid)

    def emit(self, part: list[str]) -> Iterator[pa.Table]:
        yield pa.table({"word": part})


WORDS = ["ant", "bee", "cat", "dog"]
FIRST = {1: ["cat", "dog"], 2: ["cat", "cat", "bee"], 3: ["dog"]}
SECOND = {2: ["dog", "ant"], 3: ["cat", "ant"], 4: ["bee"]}  # a batch that is defined anew has other words


class ChoosingSpout(GrowingSpout):
    """Opaque: batch 1 says where it begins, "now", and batch 2 has the words from then on."""

    def __init__(self, now: int) -> None:
        super().__init__({})
        self.spout_type, self.now = SpoutType.OPAQUE, now

    def traits(self, definition: Definition) -> BatchTraits:
        return BatchTraits(is_start_position=isinstance(definition, int))

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        return self.now if txid == 1 else WORDS[previous:] if txid == 2 else None

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> list[list[str]]:
        return [] if isinstance(definition, int) else [definition]


def count_words(
    entries: dict[Any, Any],
    kind: str,
    batches: Mapping[int, list[str]],
    log_dir: Path,
    observer: Callable[[str, TransactionAttempt], None] = lambda point, attempt: None,
) -> dict[str, int]:
    """Run all batches on the log; return the state."""
    topology = TridentTopology("t")
    words = topology.new_stream("s", GrowingSpout(batches)).group_by("word")
    state = state_without_attempts(entries) if kind == "no attempts" else dict_state(entries, kind, 1)
    words.persistent_aggregate(state, Count(), "count", state_name="counts")
    with start(topology, "in_process", observer, log_dir=str(log_dir), max_spout_pending=1) as running_topology:
        running_topology.process_all_available()
        counts = running_topology.state("counts").multi_get([(word,) for word in WORDS])
    return {word: count for word, count in zip(WORDS, counts, strict=True) if count}


def state_without_attempts(entries: dict[Any, Any], wrap: Callable[[Any], Any] = lambda backing: backing) -> StateSpec:
    """Return an opaque state whose values lie there without the attempt."""
    return map_state(
        lambda conf, partition, count: wrap(SerializedMap(DictMap(entries), WithoutAttempts())), num_partitions=1
    )


def remains(folder: Path, target: Path, keep_last: bool) -> None:
    """Copy what a power loss now may leave: the durable bytes, and of what follows only the last record, or nothing."""
    shutil.copytree(folder, target)
    for segment in target.glob("*.log"):
        data, durable = segment.read_bytes(), SyncedFile.durable[segment.name]
        frames = [each for each in read_frames(data, 0, segment)[0] if each.offset >= durable]
        kept = data[:durable]
        if keep_last and frames:
            kept += bytes(frames[-1].offset - durable) + data[frames[-1].offset :]
        segment.write_bytes(kept)


def losing_power(
    folder: Path, point: str, keep_last: bool, entries: dict[Any, Any], left: dict[Any, Any], txid: int = 2
) -> Callable[[str, TransactionAttempt], None]:
    """Return an observer that copies what a power loss at that point of a batch may leave of the log and the store."""

    def lose_power(reached: str, attempt: TransactionAttempt) -> None:
        if (reached, attempt.txid) == ("committed", txid) and point == "syncing":
            SyncedFile.before_sync.append(lambda: lose_power("syncing", attempt))
        elif (reached, attempt.txid) == (point, txid):
            remains(folder / "log", folder / "left", keep_last)
            left.update(entries)

    return lose_power


def committed_words(log_dir: Path) -> dict[str, int]:
    history = LogReader(log_dir).refresh().history
    return counted(word for record in history for word in record.spouts["s"])


@pytest.mark.parametrize("kind", ["opaque", "no attempts"])
@pytest.mark.parametrize("keep_last", [False, True], ids=["synced", "holes"])
@pytest.mark.parametrize("point", ["defined", "processed", "committing", "committed", "syncing", "recorded"])
def test_a_power_loss_that_takes_a_definition_is_exact(tmp_path: Path, point: str, keep_last: bool, kind: str) -> None:
    entries, left = dict[Any, Any](), dict[Any, Any]()
    lose_power = losing_power(tmp_path, point, keep_last, entries, left)
    count_words(entries, kind, FIRST, tmp_path / "log", lose_power)
    recorded = LogReader(tmp_path / "left").refresh().txid == 2
    found = count_words(left, kind, SECOND, tmp_path / "left")
    assert found == committed_words(tmp_path / "left")
    if kind == "opaque":
        assert recorded == (point == "recorded")
        kept = recorded or (keep_last and point != "syncing")  # a definition that happens to be left is used again
        assert found["ant"] == (1 if kept else 2)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda backing: CachedMap(backing, 9),
        lambda backing: MicroBatchIBackingMap(backing, 1, 1),
        lambda backing: ReadThroughMap(backing, mock.Mock()),
    ],
    ids=["cached", "chunked", "read-through"],
)
def test_a_map_in_front_hides_no_missing_attempt(wrap: Callable[[Any], Any], tmp_path: Path) -> None:
    topology = TridentTopology("t")
    words = topology.new_stream("s", GrowingSpout(FIRST)).group_by("word")
    words.persistent_aggregate(state_without_attempts({}, wrap), Count(), "count")
    with start(topology, "in_process", log_dir=str(tmp_path)) as running_topology:
        assert running_topology.opened.lasting


def test_a_batch_whose_time_is_lost_gets_another_one_though_the_clock_is_behind(tmp_path: Path) -> None:
    entries: dict[Any, Any] = {}
    for clock_ms in (1_000_000, 999_000):
        topology = TridentTopology("t")
        words = topology.new_stream("s", FixedBatchSpout("word: string", 1, ["a"]))
        words.tumbling_window(timedelta(seconds=10), dict_state(entries), Count(), "n")
        with (
            mock.patch.object(Clock, "wall_ms", lambda self, now=clock_ms: now),
            start(topology, "in_process", log_dir=str(tmp_path), max_batch_attempts=1) as running_topology,
        ):
            running_topology.process_all_available()
        if clock_ms == 1_000_000:  # a window was due, but what is left of the batch is that the spout had nothing
            log = FileLog.open(tmp_path, "t")
            log.append(DefineRecord(2, "s", None))
            log.close()
    assert [record.spouts["$time"]["now"] for record in LogReader(tmp_path).refresh().history] == [1_000_000] * 2


def test_a_batch_on_states_that_store_the_attempt_takes_one_sync_and_on_others_two(tmp_path: Path) -> None:
    for kind, syncs in (("opaque", 1), ("transactional", 2), ("no attempts", 2)):
        at: list[int] = []

        def note(point: str, attempt: TransactionAttempt, at: list[int] = at) -> None:
            if point == "succeeded":
                at.append(SyncedFile.syncs)

        count_words({}, kind, FIRST, tmp_path / kind, note)
        assert [at[1] - at[0], at[2] - at[1]] == [syncs, syncs]


def test_a_definition_that_a_state_counts_on_is_durable_before_anything_is_read(tmp_path: Path) -> None:
    lose_power = losing_power(tmp_path, "defined", False, {}, {})
    count_words({}, "transactional", FIRST, tmp_path / "log", lose_power)
    assert LogReader(tmp_path / "left").refresh().definitions == {2: {"s": FIRST[2]}}


def test_where_an_opaque_spout_begins_is_durable_first_and_not_chosen_again(tmp_path: Path) -> None:
    lose_power = losing_power(tmp_path, "defined", False, {}, {}, txid=1)
    for now, log, observer in ((1, "log", lose_power), (3, "left", None)):
        topology = TridentTopology("t")
        words = topology.new_stream("s", ChoosingSpout(now)).group_by("word")
        counts = words.persistent_aggregate(dict_state({}, "opaque", 1), Count(), "count")
        with start(topology, "in_process", observer, log_dir=str(tmp_path / log)) as running:
            running.process_all_available()
            assert running.state(counts).multi_get([(word,) for word in WORDS]) == [None, 1, 1, 1]
