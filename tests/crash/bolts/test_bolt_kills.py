"""No message is lost, and none acknowledged too early, whatever is killed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.crash.bolts.bolt_kills import campaign
from tests.crash.bolts.recorded import LEAVES, RECORD, judge


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.server
@pytest.mark.parametrize("queue", ["redis", "kafka"])
def test_a_million_messages_and_a_hundred_kills(tmp_path: Path, queue: str) -> None:
    found = campaign(queue, tmp_path, 1_000_000, 100, seed=14)
    assert (found.verdict.lost, found.verdict.early, found.left) == (0, 0, 0)
    assert 0 <= found.verdict.extra <= found.bound
    assert sum(found.kills.values()) == 100


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
