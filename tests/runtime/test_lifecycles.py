"""Operations of every kind are prepared once in each process before their first tuple, and ended at most once."""

from __future__ import annotations

import os
from pathlib import Path

import cloudpickle
import pytest

from tests.runtime.lifecycles import IN_THE_DRIVER, KINDS, declare, run
from trident import Config
from trident.planner import make_plan
from trident.runtime.engine import tasks
from trident.runtime.engine.resident_runner import ResidentRunner
from trident.runtime.engine.worker import Order, Program
from trident.spout.interfaces import TransactionAttempt

NAMES = {kind.__name__ for kind in KINDS}
IN_WORKERS = NAMES - IN_THE_DRIVER | {"AStatesCombiner", "AStatesReducer"}  # which work in both places


def notes_of(folder: Path) -> dict[int, list[str]]:
    return {int(path.name): sorted(path.read_text(encoding="utf-8").splitlines()) for path in folder.iterdir()}


ORDER = Order(TransactionAttempt(1, 0))


def whole(names: set[str]) -> list[str]:
    return sorted([f"prepare {name} 3" for name in names] + [f"cleanup {name}" for name in names])


def test_every_kind_is_prepared_and_counts_on_both_engines(engine: str, tmp_path: Path) -> None:
    running = run(tmp_path, engine)
    batches = {one["batchId"]: one["metrics"] for one in running.recent_progress}
    counts = {f"{name}/calls": 8 if name == "AMultiReducer" else 4 for name in NAMES}  # of one stream and of two
    assert batches == {1: counts, 2: counts}
    assert running.status["metrics"] == {name: 2 * count for name, count in counts.items()}
    notes = notes_of(tmp_path)
    here = notes.pop(os.getpid())
    assert here == whole(NAMES if engine == "in_process" else IN_THE_DRIVER)
    assert bool(notes) is (engine == "spark")
    ends = isinstance(running.opened.runner, ResidentRunner)  # others live on, for the next topology of the session
    for lines in notes.values():
        assert lines == [line for line in whole(IN_WORKERS) if ends or line.startswith("prepare")]


def test_a_worker_ends_the_operations_of_a_topology_that_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_programs", {})
    plan = make_plan(declare(tmp_path).graph())
    settings = Config().as_mapping()
    commits = {node.id for node in plan.commits}
    fragments = {entry: fragment for entry, fragment in plan.fragments.items() if entry not in commits}
    pickled = cloudpickle.dumps(Program("lives", fragments, {}, {}, settings, plan.exchanges, plan.levels))
    tasks.Job("first", pickled, ORDER).worker()
    (lines,) = notes_of(tmp_path).values()
    assert lines == [line for line in whole(IN_WORKERS) if line.startswith("prepare")]
    for number in range(tasks._PROGRAMS_KEPT):
        tasks.Job(str(number), cloudpickle.dumps(Program("other", {}, {}, {}, {})), ORDER).worker()
    (lines,) = notes_of(tmp_path).values()
    assert lines == whole(IN_WORKERS)
