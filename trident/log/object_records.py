"""Keeps the log of a topology in an object store (`record_store.py`): the head is replaced by compare-and-set."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trident.errors import LogError
from trident.log.log_state import CommittedUpTo
from trident.log.record_store import CHUNKS, HEAD, Head, RecordStore
from trident.nodes.interface import StoredNode
from trident.nodes.object_store import ObjectStore, Tag
from trident.servers.log_addresses import ObjectAddress
from trident.servers.patience import Patience
from trident.state.kinds import LaterWrite

logger = logging.getLogger(__name__)

_ANSWER_S = 15.0


class ObjectRecords(RecordStore):
    """The log at an address."""

    head_bytes = 64 << 10

    def __init__(self, address: ObjectAddress) -> None:
        self.patience, self.place = Patience("the object store", address), str(address)
        self._objects = ObjectStore(address, "a log", self.patience, LogError, _ANSWER_S)

    def get(self, names: Sequence[str]) -> list[StoredNode | None]:
        return [self._objects.get(name) for name in names]

    def claim(self, head: Head, before: Head) -> Tag | None:
        self._objects.check_conditions()
        return self._objects.swap(HEAD, head.data, head.tag)

    def replace(
        self, head: Head, chunks: Mapping[str, bytes], committed: CommittedUpTo, beside: Sequence[LaterWrite] = ()
    ) -> Tag | None:
        for name, data in chunks.items():
            self._objects.put(name, data)
        return self._objects.swap(HEAD, head.data, head.tag)

    def names(self, most: int | None = None) -> list[str]:
        return list(self._objects.tags(CHUNKS, most))

    def remove(self, names: Sequence[str]) -> None:
        self._objects.remove(names)

    def release(self, head: Head) -> None:
        try:
            self._objects.swap(HEAD, replace(head, is_held=False, turn=head.turn + 1).data, head.tag)
        except LogError as error:
            logger.warning("transaction log %s: cannot say that its driver has ended: %s", self.place, error)
