"""What a log entry and a data file of a Delta table look like when they are whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["TXN_IS_LAST", "added_files", "is_cut", "is_whole"]

TXN_IS_LAST = "trident.txn_is_last"
"""The mark of our commits: their log entry is whole only if its last line is a transaction."""

_PARQUET = b"PAR1"


def is_whole(data: bytes, version: int) -> bool:
    """Return whether the log entry of a version was written to its end."""
    # A cut at the end of a line leaves valid lines: half a batch, or a compaction that only removes. But delta-rs writes
    # the transaction of a commit last, and the commits made here say that they have one.
    try:
        actions: Sequence[Any] = [json.loads(line) for line in data.decode("utf-8").splitlines()]
    except ValueError:
        return False
    if not actions or not all(isinstance(action, dict) for action in actions):
        return False
    kinds = {kind for action in actions for kind in action}
    if version == 0 and not {"protocol", "metaData"} <= kinds:
        return False
    notes = [note for action in actions if isinstance(note := action.get("commitInfo"), dict)]
    return "txn" in actions[-1] if any(TXN_IS_LAST in note for note in notes) else True


def added_files(entry: str) -> list[Mapping[str, Any]]:
    """Return the data files that a log entry adds."""
    return [action["add"] for action in map(json.loads, entry.splitlines()) if "add" in action]


def is_cut(name: Path, size: int | None = None) -> bool:
    """Return whether a Parquet file is missing, or not as long as it should be."""
    try:
        data = name.open("rb")
    except FileNotFoundError:
        return True
    with data:
        length = data.seek(0, os.SEEK_END)
        if length < 2 * len(_PARQUET) or (size is not None and size != length):
            return True
        ends = []
        for at in (0, length - len(_PARQUET)):
            data.seek(at)
            ends.append(data.read(len(_PARQUET)))
        return ends != [_PARQUET, _PARQUET]
