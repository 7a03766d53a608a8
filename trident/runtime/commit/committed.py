"""What a batch changed, and what became of one partition.

R16: no two partitions of a state write one key in one batch, as only a user's updater could.

The driver compares what the partitions write before any of them commits. Of an opaque state that tasks commit it compares
afterwards, before the batch is recorded: what an attempt wrote that is not recorded counts as never written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from trident.errors import KeyConflictError, StateError
from trident.naming import shown
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.steps.failures import StepFailed
from trident.state.encoding.codec import decode, encode_tuples
from trident.state.encoding.equal_keys import canonical_keys
from trident.state.interfaces import State
from trident.state.key_counts import NO_KEYS, KeyCounts
from trident.state.kinds import LaterWrite


@dataclass
class Committed(TaskOutput):
    """What a batch changed: of its states all, of its steps what those gave that run behind what the driver commits.

    `touched`: the partitions of each state that had input, ascending.
    `took_ns`: by node that the driver committed, how long that and the steps behind it took.
    `later`: the writes that are left to the batch's record.
    """

    took_ns: dict[str, int] = field(default_factory=dict)
    later: Sequence[LaterWrite] = ()


class Updated(NamedTuple):
    """What became of one partition: the rows that it gives, what operations counted and its keys, or why it failed."""

    values: pa.Table | None = None
    counts: Mapping[str, int] = MappingProxyType({})
    failure: StepFailed | None = None
    keys: KeyCounts = NO_KEYS


_MOST_BYTES = 64  # of a mark; a longer key is represented by its hash
_HASH_BYTES = 16


def marks_of(state: State) -> list[bytes]:
    """Return a mark for each key that the commit under way writes; nothing for a state that is no map."""
    return [
        key
        if len(key) <= _MOST_BYTES
        else key[: _MOST_BYTES - _HASH_BYTES] + blake2b(key, digest_size=_HASH_BYTES).digest()
        for key in encode_tuples(canonical_keys(list(state.written_keys())))
    ]


def check_one_writer(state: str, written: Mapping[int, Sequence[bytes]], txid: int) -> None:
    """Compare the marks of the partitions.

    Raises `KeyConflictError`: two partitions write one key.
    """
    writers: dict[bytes, int] = {}
    for partition, marks in sorted(written.items()):
        for mark in marks:
            other = writers.setdefault(mark, partition)
            if other != partition:
                raise KeyConflictError(state, _shown(mark), other, partition, int(txid))


def _shown(mark: bytes) -> str:
    try:
        return f"the key {shown(tuple(decode(mark)))}"
    except (StateError, TypeError):
        return "a long key"
