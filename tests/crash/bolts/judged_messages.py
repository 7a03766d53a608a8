"""What became of the messages, from the records of all processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.crash.bolts.recorded import LEAVES

__all__ = ["Verdict", "acked", "judge"]

_TYPE = np.dtype([("message", "<u4"), ("leaf", "<u4"), ("at", "<u8")])


@dataclass(frozen=True)
class Verdict:
    """All counts are of messages, but for `executions` and `extra`, which are of leaves.

    Attributes
    ----------
    lost
        With a leaf that was never executed, or without an acknowledgement.
    early
        Acknowledged before the first execution of its last leaf.
    extra
        Executions beyond one of each leaf.
    """

    messages: int
    lost: int
    early: int
    executions: int
    extra: int
    acked_again: int


def acked(folder: Path) -> int:
    """Return how many messages have been acknowledged so far."""
    return len(np.unique(_read(folder, "acks")["message"]))


def judge(folder: Path, messages: int) -> Verdict:
    """Compare what was executed with what was acknowledged, message by message."""
    leaves, acks = _read(folder, "leaves"), _read(folder, "acks")
    first = np.full(messages * LEAVES, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(first, leaves["message"].astype(np.int64) * LEAVES + leaves["leaf"], leaves["at"])
    complete = first.reshape(messages, LEAVES).max(axis=1)
    never = complete == np.iinfo(np.uint64).max
    answered = np.zeros(messages, bool)
    answered[acks["message"]] = True
    early = np.unique(acks["message"][acks["at"] < complete[acks["message"]]])
    return Verdict(
        messages,
        int((never | ~answered).sum()),
        len(early),
        len(leaves),
        len(leaves) - messages * LEAVES,
        len(acks) - int(answered.sum()),
    )


def _read(folder: Path, kind: str) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    found = [np.fromfile(each, _TYPE) for each in folder.glob(f"{kind}-*")]
    return np.concatenate([*found, np.empty(0, _TYPE)])
