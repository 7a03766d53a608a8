"""No message is lost, and none acknowledged too early, whatever is killed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.spouts.messages.bolt_kills import LEAVES, RECORD, campaign, judge
from tests.spouts.messages.places import Place


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("master", "messages", "kills"), [("local-cluster[2,1,1024]", 1_000_000, 100), (None, 20_000, 10)]
)
def test_no_message_is_lost_or_acked_early(
    master: str | None, messages: int, kills: int, place: Place, tmp_path: Path
) -> None:
    found = campaign(place, tmp_path, messages, kills, seed=14, master=master)
    assert (found.verdict.lost, found.verdict.early, found.left) == (0, 0, 0)
    assert 0 <= found.verdict.extra <= found.bound
    assert found.kills.total() == kills


def _write(folder: Path, kind: str, *records: tuple[int, int, int]) -> None:
    (folder / f"{kind}-1").write_bytes(b"".join(RECORD.pack(*each) for each in records))


def test_the_judge_sees_what_is_lost_early_and_executed_again(tmp_path: Path) -> None:
    leaves = [(message, leaf, 10 + leaf) for message in range(4) for leaf in range(LEAVES)]
    _write(tmp_path, "leaves", *leaves[:-1], (0, 0, 50))
    _write(tmp_path, "acks", (0, 0, 20), (1, 0, 11), (3, 0, 30), (0, 0, 60))
    found = judge(tmp_path, 4)
    assert (found.lost, found.early, found.extra, found.acked_again) == (2, 2, 0, 1)
    assert found.executions == len(leaves)
    assert np.fromfile(tmp_path / "acks-1", np.uint8).size == 4 * RECORD.size
