"""Commits of a Delta state through Spark give what commits in process give, and are fenced alike."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.states.delta.delta_states import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]  # the first run on a machine fetches the library


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `delta_merge_child` found."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.states.delta.delta_merge_child", str(tmp_path_factory.mktemp("merge"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found: dict[str, Any] = {}
    for line in run.stdout.splitlines():
        if line.startswith("FACTS "):
            found |= json.loads(line[6:])
    return found


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_random_histories_with_replays_end_with_the_same_values_and_sentinel(facts: dict[str, Any], kind: str) -> None:
    assert facts[f"{kind} attempts"] > 1  # a history without a replay would show little
    assert facts[f"{kind} mixed"] == facts[f"{kind} in process"]
    assert len(facts[f"{kind} mixed"][1]) >= 4


def test_the_rule_in_spark_is_the_rule(facts: dict[str, Any]) -> None:
    assert (facts["rule"], facts["asked"]) == ([], 12 * 2 * 29)


def test_what_a_lost_attempt_wrote_is_no_base(facts: dict[str, Any]) -> None:
    assert facts["lost"] == [[["dog"], [3, 2, 4, 5]], [["man"], [3, 2, 5, 6]]]


def test_a_writer_that_was_replaced_while_spark_worked_writes_nothing(facts: dict[str, Any]) -> None:
    assert facts["fenced"].startswith("FencedError: state 'counts' partition 0")
    assert facts["fenced value"] == [52]


def test_an_older_writer_that_woke_up_makes_the_batch_try_again(facts: dict[str, Any]) -> None:
    assert facts["refused"].startswith("BackendError: state 'counts' partition 0")
    assert "another writer moved the sentinel to batch 3 attempt 1" in facts["refused"]
    assert facts["refused value"] == [52]


def test_a_compaction_while_spark_worked_does_no_harm(facts: dict[str, Any]) -> None:
    assert (facts["compacted"], facts["compacted value"]) == ("nothing", [7])


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("twice", "ValueError: key ('man',) occurs more than once"),
        ("unknown", "ConfigError: combine='median' is unknown; use one of count, max, min, sum"),
        ("untyped", "conf must declare key_fields and value_type"),
        ("stale", "StaleTransactionError: batch 5 is behind batch 7 stored for ('man',)"),
        ("foreign", "StateMismatchError: partition 0 of state 'words/counts': the log expects no commit"),
    ],
)
def test_what_cannot_be_committed_is_refused_and_nothing_is_written(
    facts: dict[str, Any], what: str, text: str
) -> None:
    assert text in facts[what]
    assert facts["version"] == 1


def test_types_and_renamed_key_columns_pass_through_spark(facts: dict[str, Any]) -> None:
    assert facts["types"] == ["3.75"]


def test_a_state_is_a_dataframe_without_its_removed_keys(facts: dict[str, Any]) -> None:
    assert facts["schema"] == "struct<word:string,value:bigint>"
    assert facts["frame"] == [["man", 5]]


def test_nothing_is_left_in_the_staging_folder(facts: dict[str, Any]) -> None:
    assert facts["staging"] == []
