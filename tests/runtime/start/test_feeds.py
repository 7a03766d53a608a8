"""What the states of a topology keep of their past: a start that does not say how much keeps what the log has."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from spouts import FeederBatchSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from trident import TridentTopology
from trident.operations import Count


def kept_of(folder: Path, spec: Any) -> Any:
    """Run a batch, and return the options of the state that is opened, and what the log says of it."""
    spout, topology = FeederBatchSpout("word: string"), TridentTopology("words")
    words = topology.new_stream("words", spout).group_by("word")
    words.persistent_aggregate(spec, Count(), "count", state_name="count")
    with topology.start(engine="in_process", log_dir=folder / "log", state_recovery="discard_totals") as running:
        spout.feed([["the"]])
        running.process_all_available()
        facts = running.opened.plan.states["count"].spec.facts
        return dict(facts.kept), running.log_state.declared["states"]["count"].get("kept")


@pytest.mark.slow
def test_a_start_that_does_not_say_it_keeps_the_files_and_versions_of_a_delta_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trident.runtime.start.recovery")
    path = tmp_path / "table"
    week: dict[str, Any] = {"vacuum_after_hours": 168, "retained_versions": None}
    assert kept_of(tmp_path, DeltaState.opaque(path, **week)) == (week, week)
    assert not caplog.messages
    assert kept_of(tmp_path, DeltaState.opaque(path)) == (week, week)
    assert caplog.messages == [
        "topology words: state count keeps vacuum_after_hours=168, which its log has and its declaration does not set",
        "topology words: state count keeps retained_versions=None, which its log has and its declaration does not set",
    ]
    day = {**week, "vacuum_after_hours": 24}
    assert kept_of(tmp_path, DeltaState.opaque(path, vacuum_after_hours=24)) == (day, day)


@pytest.mark.slow
def test_a_store_that_cannot_keep_what_the_log_has_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept_of(tmp_path, DeltaState.opaque(tmp_path / "table", vacuum_after_hours=168))
    assert kept_of(tmp_path, MemoryMapState()) == ({}, None)
    assert "the store of state count cannot keep what the log has: vacuum_after_hours=168" in caplog.text
