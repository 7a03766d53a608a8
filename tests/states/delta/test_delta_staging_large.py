"""States that are kept in files, which tasks stage and the driver publishes and merges."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from states.delta.large_index import LargeIndex
from tests.states.delta.delta_states import Log, changes, reader_at, state_at, values
from tests.states.delta.test_delta_staging import stage, staged_files, step
from trident.errors import BackendError
from trident.state.interfaces import StateType
from trident.state.txid import Snapshot

KEYS = [f"w{number}" for number in range(60)]
LARGE: dict[str, Any] = {"max_keys_in_memory": 20, "compact_after_commits": 4, "vacuum_after_hours": 1}


def large(path: Path, kind: StateType = StateType.OPAQUE, **options: Any) -> Any:
    return state_at(path, kind=kind, **{**LARGE, "background_maintenance": False, **options})


def merged(path: Path) -> int | None:
    found: int | None = DeltaTable(path).transaction_version("trident/merged")
    return found


def test_the_driver_keeps_the_state_in_files_and_merges_what_tasks_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("states.delta.beyond_memory._SHARE", 1)
    task, driver, log = large(tmp_path), large(tmp_path, publish_every_s=1), Log()
    monkeypatch.setattr("states.delta.beyond_memory.time.monotonic", iter(range(0, 10_000, 5)).__next__)
    holds = []
    for number in range(1, 30):
        step(task, driver, log, number, 1, {KEYS[(number * 7 + n) % 60]: 1 for n in range(30)})
        holds.append(merged(tmp_path))
    assert holds[0] is None
    assert len({*holds}) > 5
    assert isinstance(task._backing._index.values, LargeIndex)
    assert task._backing._index.values.values.changes < 120  # it dropped what is merged
    assert len(DeltaTable(changes(tmp_path)).file_uris()) < 12
    driver.recorded(Snapshot(29, log.winners))
    driver.close()
    shown = {row["word"]: row["value"] for row in DeltaTable(tmp_path).to_pyarrow_table().to_pylist()}
    wanted = Counter(KEYS[(number * 7 + n) % 60] for number in range(1, 30) for n in range(30))
    assert shown == dict(reader_at(tmp_path).get_tuples()) == wanted


def test_a_task_that_staged_before_a_merge_goes_on_after_it(tmp_path: Path) -> None:
    task, other, driver, log = large(tmp_path), large(tmp_path), large(tmp_path), Log()
    for number in range(1, 6):
        step(task, driver, log, number, 1, dict.fromkeys(KEYS, 1))
    txid = log.txid(6, 1)
    staged = stage(task, txid, dict.fromkeys(KEYS[:10], 1))
    driver.recorded(Snapshot(5, log.winners))
    driver._backing._merges.finish(driver._backing._recorded)
    driver.publish(txid, staged)
    log.record(txid)
    step(other, driver, log, 7, 1, dict.fromkeys(KEYS[:10], 1))
    step(task, driver, log, 8, 1, dict.fromkeys(KEYS[:10], 1))
    assert values(reader_at(tmp_path), "w0", "w59") == [8, 5]


class Life:
    """A schedule of tasks, drivers and crashes, by a seed."""

    def __init__(self, path: Path, kind: StateType, seed: int) -> None:
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

    def _rows(self) -> dict[str, int]:
        return {key: self.rng.randrange(1, 5) for key in self.rng.sample(KEYS, self.rng.randrange(1, 40))}


def schedules() -> Iterator[Any]:
    for seed in range(20):
        for kind in (StateType.OPAQUE, StateType.TRANSACTIONAL):
            yield pytest.param(kind, seed, marks=[] if seed < 2 else [pytest.mark.soak])


@pytest.mark.parametrize(("kind", "seed"), list(schedules()))
def test_any_schedule_of_lost_tasks_and_drivers_counts_each_batch_once(
    tmp_path: Path, kind: StateType, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("states.delta.beyond_memory._SHARE", 1)
    life = Life(tmp_path, kind, seed)
    for number in range(1, 31):
        life.batch(number)
        reader, at = reader_at(tmp_path, kind), Snapshot(number, life.log.winners)
        found = reader.get_tuples_at(at) if kind is StateType.OPAQUE else reader.get_tuples()
        assert dict(found) == life.counts, number
    life.driver.recorded(Snapshot(30, life.log.winners))
    life.driver.close()
    shown = {row["word"]: row["value"] for row in DeltaTable(tmp_path).to_pyarrow_table().to_pylist()}
    assert shown == life.counts
    assert staged_files(tmp_path) == []
