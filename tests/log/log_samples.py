"""What the tests of the log share."""

from pathlib import Path
from typing import Any

from trident.log import framing, lock
from trident.log.file_log import FileLog
from trident.log.framing import read_frames
from trident.log.log_state import LogState
from trident.log.records import CommitRecord

TOPOLOGY = "word-count"
ATTEMPT = 1 << 20


def commit(txid: int, attempt: int = ATTEMPT, payload: Any = None) -> CommitRecord:
    return CommitRecord(txid, attempt, {"lines": payload}, {"counts": [txid % 4]}, {"tuples": 10}, 1_700_000_000_000)


def reopened(path: Path, **options: Any) -> LogState:
    log = FileLog.open(path, TOPOLOGY, **options)
    log.close()
    return log.state


def without_epoch(state: LogState) -> dict[str, Any]:
    return {name: value for name, value in state.to_data().items() if name != "epoch"}


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def newest(path: Path) -> Path:
    found = lock.list_log(path).newest
    assert found is not None
    return path / found.file


def frames_of(segment: Path) -> list[framing.Frame]:
    return read_frames(segment.read_bytes(), 0, segment)[0]
