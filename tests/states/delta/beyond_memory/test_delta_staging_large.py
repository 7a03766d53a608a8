"""States that are kept in files, which tasks stage and the driver publishes and merges."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from states.delta.beyond_memory.large_index import LargeIndex
from tests.harness.crashing_stores import tuples_at
from tests.states.delta.delta_states import Log, changes, commit, people_read, reader_at, state_at, update, values
from tests.states.delta.test_delta_staging import stage, staged_files, step
from trident.errors import BackendError
from trident.state.interfaces import FormerTypes, StateConf, StateType
from trident.state.txid import Snapshot, Txid

pytestmark = pytest.mark.slow

KEYS = [f"w{number}" for number in range(60)]
LARGE: dict[str, Any] = {"max_keys_in_memory": 20, "compact_after_commits": 4, "vacuum_after_hours": 1}


def large(path: Path, kind: StateType = StateType.OPAQUE, **options: Any) -> Any:
    return state_at(path, kind=kind, **{**LARGE, "background_maintenance": False, **options})


def merged(path: Path) -> int | None:
    found: int | None = DeltaTable(path).transaction_version("trident/merged")
    return found


def test_a_task_that_staged_before_a_merge_goes_on_after_it(tmp_path: Path) -> None:
    task, other, driver, log = large(tmp_path), large(tmp_path), large(tmp_path), Log()
    for number in range(1, 6):
        step(task, driver, log, number, 1, dict.fromkeys(KEYS, 1))
    txid = log.txid(6, 1)
    staged = stage(task, txid, dict.fromkeys(KEYS[:10], 1))
    driver.recorded(Snapshot(5, log.winners))
    driver._backing._publishing.finish()
    driver.publish(txid, staged)
    log.record(txid)
    step(other, driver, log, 7, 1, dict.fromkeys(KEYS[:10], 1))
    step(task, driver, log, 8, 1, dict.fromkeys(KEYS[:10], 1))
    assert values(reader_at(tmp_path), "w0", "w59") == [8, 5]


class Wider(FormerTypes):
    """Of a declaration that has made a bigint of an int, and of the former one again."""

    fields = ()

    def __init__(self, *until: int) -> None:
        self.types = tuple((attempt, "int", {"count": "count"}) for attempt in until)

    def convert(self, values: list[Any], former: str, names: Any) -> list[Any]:
        return values

    def narrow(self, values: list[Any]) -> list[Any]:
        return values

    def widen(self, values: Any, attempt: int) -> Any:
        return values


def declared(path: Path, value: str, *until: int) -> Any:
    conf = StateConf("words", "counts", (("word", "string"),), value, value_field="count", migrate=Wider(*until))
    return state_at(path, conf, **{**LARGE, "background_maintenance": False})


def test_tasks_and_driver_of_a_wider_declaration_go_on_and_the_former_ones_come_back(tmp_path: Path) -> None:
    def type_at_path() -> Any:
        assert merged(tmp_path) is not None
        return DeltaTable(tmp_path).schema().to_arrow().field("count").type.bit_width

    log = Log()
    task, driver = (declared(tmp_path, "int") for _ in range(2))
    for number in range(1, 6):
        step(task, driver, log, number, 1, dict.fromkeys(KEYS, 1))
    assert type_at_path() == 32
    wide_task, wide_driver = (declared(tmp_path, "bigint", log.epoch + 2) for _ in range(2))
    txid = log.txid(6, 2)
    wide_driver.publish(txid, stage(wide_task, txid, {"w0": 1000}))  # and dies before it is recorded
    assert type_at_path() == 64
    task, driver = (declared(tmp_path, "int") for _ in range(2))
    driver.read_sentinel()
    step(task, driver, log, 6, 3, dict.fromkeys(KEYS, 1))
    step(task, driver, log, 7, 3, dict.fromkeys(KEYS[:30], 1))
    assert type_at_path() == 32
    assert values(reader_at(tmp_path), "w0", "w59") == [7, 6]
    wide_task, wide_driver = (declared(tmp_path, "bigint", log.epoch + 4) for _ in range(2))
    wide_driver.read_sentinel()
    for number in range(8, 12):
        step(wide_task, wide_driver, log, number, 4, dict.fromkeys(KEYS[number:], 2**40))
    assert type_at_path() == 64
    assert values(reader_at(tmp_path), "w0", "w8", "w59") == [7, 7 + 2**40, 6 + 2**42]


@pytest.mark.long
@pytest.mark.parametrize(
    ("staged", "first", "is_cleaned"),
    [(range(1, 31), 30, False), ((1, 2, 3, 20), 30, True), ((1, 30), 5, False)],
    ids=["by tasks", "by tasks and the driver", "by the driver, once it does not fit into memory"],
)
def test_what_tasks_stage_and_the_driver_commits_is_merged_and_leaves_memory(
    tmp_path: Path, staged: Any, first: int, is_cleaned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `engine="auto"`: small batches are committed by the driver, large ones by tasks."""
    monkeypatch.setattr("states.delta.publishing._SHARE", 1)
    monkeypatch.setattr("states.delta.publishing.time.monotonic", iter(range(0, 100_000, 5)).__next__)
    task, driver, log = large(tmp_path), large(tmp_path, publish_every_s=1), Log()
    wanted, merges = Counter[str](), set[int | None]()
    for number in range(1, 31):
        rows = {f"w{number // 2}-{n}": 1 for n in range(first if number == 1 else 30)}  # each key in two batches
        writer = task if number in staged else driver
        if writer is task:
            step(task, driver, log, number, 1, rows)
        else:
            commit(driver, log, number, 1, rows)
        driver.recorded(Snapshot(number, log.winners))
        newest = {Path(file).name for file in DeltaTable(tmp_path).file_uris()}
        for file in tmp_path.glob("*.parquet"):
            if is_cleaned and file.name not in newest:  # as the clean-up does, an hour later
                file.unlink()
        wanted.update(rows)
        asked = "w1-7", f"w{number // 2}-7"
        assert values(reader_at(tmp_path), *asked) == [wanted[word] or None for word in asked], number
        merges.add(merged(tmp_path))
        if number > 3:
            assert isinstance(writer._backing._index.values, LargeIndex)
            assert writer._backing._index.values.changes < 200  # of 900 rows: it dropped what is merged
    assert len(merges) > 5
    assert len(DeltaTable(changes(tmp_path)).file_uris()) < 12
    driver.close()
    assert people_read(tmp_path) == dict(reader_at(tmp_path).get_tuples()) == wanted


class Life:
    """A schedule of tasks, drivers and crashes, by a seed; of some batches the driver makes the whole commit."""

    def __init__(self, path: Path, kind: StateType, seed: int, mixed: bool) -> None:
        self.mixed = mixed
        self.path, self.kind, self.rng, self.log = path, kind, random.Random(seed), Log()
        self.counts: Counter[str] = Counter()
        self.in_thread = self.rng.random() < 0.5
        self.tasks, self.driver = [self._open(), self._open()], self._open()
        self.attempt = 1

    def _open(self) -> Any:
        options = {"max_keys_in_memory": self.rng.choice([15, 1000]), "publish_every_s": 1}
        return large(
            self.path, self.kind, background_maintenance=self.in_thread, **{"max_keys_in_memory": 25} | options
        )

    def batch(self, number: int) -> None:
        same = self._rows()
        while True:
            rows = same if self.kind is StateType.TRANSACTIONAL else self._rows()
            txid, chance = self.log.txid(number, self.attempt), self.rng.random()
            if self.mixed and self.rng.random() < 0.5:
                if not self.commit(txid, rows, chance):
                    self.attempt += 1
                    continue
                return
            task = self.rng.choice(self.tasks)
            try:
                staged = stage(task, txid, rows)
                if chance < 0.15:  # the executor is gone
                    self.tasks[self.tasks.index(task)] = self._open()
                    raise BackendError("lost")
                if chance < 0.3:  # the driver is gone, before it publishes
                    self.driver = self._open()
                    raise BackendError("lost")
                self.driver.publish(txid, staged)
                if chance < 0.45:  # before it records
                    self.driver = self._open()
                    raise BackendError("lost")
            except BackendError:
                self.attempt += 1
                continue
            self.log.record(txid)
            self.counts.update(rows)
            if chance > 0.7:
                self.driver.recorded(Snapshot(number, self.log.winners))
            return

    def commit(self, txid: Txid, rows: dict[str, int], chance: float) -> bool:
        try:
            self.driver.begin_commit(txid)
            update(self.driver, rows)
            self.driver.commit(txid)
            if chance < 0.2:  # the driver is gone, before it records
                self.driver = self._open()
                return False
        except BackendError:
            return False
        self.log.record(txid)
        self.counts.update(rows)
        if chance > 0.5:
            self.driver.recorded(Snapshot(int(txid), self.log.winners))
        return True

    def _rows(self) -> dict[str, int]:
        return {key: self.rng.randrange(1, 5) for key in self.rng.sample(KEYS, self.rng.randrange(1, 40))}


def schedules() -> Iterator[Any]:
    for seed in range(20):
        for kind in (StateType.OPAQUE, StateType.TRANSACTIONAL):
            yield pytest.param(kind, seed, marks=[] if seed < 1 else [pytest.mark.soak])


@pytest.mark.long
@pytest.mark.parametrize("mixed", [False, True], ids=["tasks", "tasks and driver"])
@pytest.mark.parametrize(("kind", "seed"), list(schedules()))
def test_any_schedule_of_lost_tasks_and_drivers_counts_each_batch_once(
    tmp_path: Path, kind: StateType, seed: int, mixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("states.delta.publishing._SHARE", 1)
    life = Life(tmp_path, kind, seed, mixed)
    for number in range(1, 31):
        life.batch(number)
        reader, at = reader_at(tmp_path, kind), Snapshot(number, life.log.winners)
        found = tuples_at(reader, at) if kind is StateType.OPAQUE else reader.get_tuples()
        assert dict(found) == life.counts, number
    life.driver.recorded(Snapshot(30, life.log.winners))
    life.driver.close()
    assert people_read(tmp_path) == life.counts
    assert staged_files(tmp_path) == []
