"""While a driver commits and is killed with SIGKILL, the table at the path shows exact states of committed batches only."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.states.delta.delta_states import ROOT
from tests.states.delta.publish_child import records_in


def state_after(records: list[tuple[int, int]], txid: int) -> dict[str, int]:
    model: Counter[str] = Counter()
    for number, attempt in records[:txid]:
        model.update({"all": 1, f"attempt {attempt}": 1, f"w{number % 5}": 1})
    return dict(model)


def shown(path: Path) -> tuple[int, dict[str, int]] | None:
    """What the table shows: a batch, and its rows; None before the first one."""
    try:
        table = DeltaTable(path)
    except TableNotFoundError:
        return None
    txid = table.transaction_version("trident/words/counts/shown")
    if txid is None:
        return None
    rows = table.to_pyarrow_table()
    keys = rows["word"].to_pylist()
    assert len(set(keys)) == len(keys), "a key has two rows"
    return int(txid), dict(zip(keys, rows["value"].to_pylist(), strict=True))


@pytest.mark.long
@pytest.mark.slow
def test_each_state_that_is_shown_is_that_of_a_committed_batch_whenever_the_writer_is_killed(tmp_path: Path) -> None:
    path, records, seed = tmp_path / "state", tmp_path / "records", random.randrange(1 << 32)
    chance, batches = random.Random(seed), [0]
    for attempt in range(1, 4):
        command = [sys.executable, "-m", "tests.states.delta.publish_child", str(path), str(records), str(attempt)]
        child = subprocess.Popen(command, cwd=ROOT)
        try:
            until, before = time.monotonic() + 60, batches[-1]
            wanted = before + 1 + chance.randrange(3)
            while batches[-1] <= wanted and time.monotonic() < until:
                if (now := shown(path)) is not None:
                    txid, rows = now
                    assert rows == state_after(records_in(records), txid), (seed, attempt, txid)
                    assert txid >= batches[-1], (seed, attempt)
                    batches.append(txid)
            time.sleep(chance.uniform(0, 0.3))  # anywhere in a commit, or in a publication
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
        assert batches[-1] > before, "nothing was shown in this life"
    assert len(set(batches)) > 3
    assert shown(path) is not None
