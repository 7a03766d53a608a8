"""R16: no two partitions of a state write one key in one batch, as only an updater of the user's could.

The driver compares what the partitions write before any of them commits. Of an opaque state that tasks commit it compares
afterwards, before the batch is recorded: what an attempt wrote that is not recorded counts as never written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from trident.errors import KeyConflictError, StateError
from trident.runtime.steps.failures import shown
from trident.state.encoding.codec import decode, encode_tuples
from trident.state.encoding.equal_keys import canonical_keys
from trident.state.interfaces import State

__all__ = ["check_one_writer", "marks_of"]

_MOST_BYTES = 64  # of a mark; a longer key is told by its hash
_HASH_BYTES = 16


def marks_of(state: State) -> list[bytes]:
    """Return what tells the keys apart that the commit under way writes; nothing of a state that is no map."""
    return [
        key
        if len(key) <= _MOST_BYTES
        else key[: _MOST_BYTES - _HASH_BYTES] + blake2b(key, digest_size=_HASH_BYTES).digest()
        for key in encode_tuples(canonical_keys(list(state.written_keys())))
    ]


def check_one_writer(state: str, written: Mapping[int, Sequence[bytes]], txid: int) -> None:
    """Compare the marks of the partitions.

    Raises
    ------
    KeyConflictError
        Two partitions write one key.
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
