"""Fixtures of the tests of the log."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest

from tests.coordination.log_samples import TOPOLOGY, commit
from trident.coordination.log_state import LogState
from trident.coordination.transaction_log import FileLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a" / "log"


@pytest.fixture
def three(path: Path) -> list[LogState]:
    """A log of three batches in one segment; the state after 0, 1, 2 and 3 of them."""
    log = FileLog.open(path, TOPOLOGY)
    states = [deepcopy(log.state)]
    for txid in range(1, 4):
        log.append(commit(txid, payload={"to": txid}))
        states.append(deepcopy(log.state))
    log.close()
    return states
