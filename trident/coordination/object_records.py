"""Keeps the log of a topology in an object store, as a head and chunks (`head_records.py`).

The head is replaced only on condition that it is the one last seen (`object_client.py`). Beside it is `<prefix>/conditions`:
what is put at each start to see that the store refuses it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trident.coordination.head_records import CHUNKS, HEAD, HeadBody, HeadRecords
from trident.coordination.record_store import Head
from trident.errors import LogError
from trident.nodes.interface import StoredNode
from trident.servers.log_addresses import ObjectAddress
from trident.servers.object_client import ObjectClient, Tag
from trident.servers.patience import Patience

logger = logging.getLogger(__name__)


class ObjectRecords(HeadRecords):
    """The log at an address."""

    head_bytes = 64 << 10

    def __init__(self, address: ObjectAddress) -> None:
        super().__init__(address, Patience("the object store", address))
        self._client = ObjectClient(address, "a log", self.patience, LogError)

    def has(self, claim: Head) -> bool:
        known = self._body  # before the request: a thread may append meanwhile
        if known is not None and self._client.tag_of(HEAD) == known.tag.get("e_tag"):
            return True
        now = self.look()
        return now is not None and now.id == claim.id

    def is_held(self, claim: Head, wait: bool = False) -> bool:
        return isinstance(claim, HeadBody) and claim.is_held

    def release(self, claim: Head) -> None:
        body = self._body
        if body is None or body.id != claim.id or not body.is_held:
            return
        released = replace(body, is_held=False, turn=body.turn + 1)
        try:
            self._keep(released, self._replace(released, {}))
        except LogError as error:
            logger.warning("transaction log %s: cannot say that its driver has ended: %s", self._address, error)

    def _prepare(self) -> None:
        self._client.check_conditions()

    def _get_each(self, names: Sequence[str]) -> list[StoredNode | None]:
        found = map(self._client.get, names)
        return [None if each is None else StoredNode(*each) for each in found]

    def _replace(self, body: HeadBody, chunks: Mapping[str, bytes]) -> Tag | None:
        for name, data in chunks.items():
            self._put(name, data)
        return self._client.swap(HEAD, body.to_bytes(), body.tag)

    def _replace_claim(self, body: HeadBody, before: HeadBody) -> Tag | None:
        return self._replace(body, {})

    def _put(self, name: str, data: bytes) -> None:
        self._client.put(name, data)

    def _names(self) -> list[str]:
        return self._client.names(CHUNKS)

    def _remove(self, names: Sequence[str]) -> None:
        self._client.remove(names)
