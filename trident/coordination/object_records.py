"""Keeps the log of a topology in an object store, as a head and chunks (`head_records.py`).

The head is replaced only on condition that it is the one last seen (`If-Match`; the first one `If-None-Match`). Beside it is
`<prefix>/conditions`: what is put at each start to see that the store refuses it. A request without an answer is made again.
If it is refused then, the head tells whether the first one was carried out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from trident.coordination.head_records import CHUNKS, HEAD, HeadBody, HeadRecords
from trident.coordination.record_store import Head
from trident.errors import LogError
from trident.extras import needs_package
from trident.nodes.interface import StoredNode
from trident.object_stores import is_unanswered, short
from trident.servers.log_addresses import ObjectAddress
from trident.servers.patience import Patience

T = TypeVar("T")
_Tag = dict[str, str]
logger = logging.getLogger(__name__)

_CONDITIONS = "conditions"
_TIMEOUT = {"timeout": "15s", "connect_timeout": "5s"}
_NEVER = {"e_tag": '"00000000000000000000000000000000"', "version": "1"}


class _UnderWayError(Exception):
    """The store was changing the object for another request."""


class ObjectRecords(HeadRecords):
    """The log at an address."""

    head_bytes = 64 << 10

    def __init__(self, address: ObjectAddress) -> None:
        with needs_package("a log in an object store", "object-store", "obstore"):
            import obstore
            from obstore import exceptions
            from obstore.store import from_url
        super().__init__(address, Patience("the object store", address))
        self._obstore, self._errors = obstore, exceptions
        options: Any = {"client_options": {**_TIMEOUT, "allow_http": True}, "retry_config": {"max_retries": 0}}
        self._store: Any = from_url(address.url, **options)
        self._refusals = (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileNotFoundError)

    def has(self, claim: Head) -> bool:
        known = self._body  # before the request: a thread may append meanwhile
        if known is not None and self._call(self._tag_of_head) == known.tag.get("e_tag"):
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
            self._keep(released, self._swap(released))
        except LogError as error:
            logger.warning("transaction log %s: cannot say that its driver has ended: %s", self._address, error)

    def _prepare(self) -> None:
        """Raise `LogError` unless the store refuses what its conditions forbid."""

        def refuses(condition: Any) -> bool:
            try:
                self._put_once(_CONDITIONS, b"", condition)
            except self._refusals as error:
                if isinstance(error, FileNotFoundError):
                    raise LogError(f"cannot keep a log at {self._address}: {short(error)}. Make the bucket") from error
                return True
            return False

        def request() -> bool:
            return (refuses("create") or refuses("create")) and refuses(_NEVER)

        if not self._call(request):
            raise LogError(
                f"cannot keep a log at {self._address}: this store carries out a put whose condition does not hold "
                "(If-None-Match, If-Match), so it could not keep two drivers apart. Use a store that has conditional writes, "
                "or keep the log elsewhere"
            )

    def _get_each(self, names: Sequence[str]) -> list[StoredNode | None]:
        return [self._call(partial(self._get_once, name)) for name in names]

    def _replace(self, body: HeadBody, chunks: Mapping[str, bytes]) -> _Tag | None:
        for name, data in chunks.items():
            self._put(name, data)
        return self._swap(body)

    def _replace_claim(self, body: HeadBody, before: HeadBody) -> _Tag | None:
        return self._swap(body)

    def _swap(self, body: HeadBody) -> _Tag | None:
        """Replace the head on condition that it has the tag, or is not there if that is None; return the new one's."""
        data, tag = body.to_bytes(), body.tag

        def request() -> _Tag | None:
            try:
                return self._put_once(HEAD, data, "create" if tag is None else tag)
            except self._refusals:
                found = self._get_once(HEAD)
                if found is not None and found.data == data:
                    own: _Tag = found.version  # by a request whose answer was lost
                    return own
                if found is not None and found.version == tag:
                    raise _UnderWayError from None
                return None

        return self._call(request)

    def _put(self, name: str, data: bytes) -> None:
        self._call(lambda: self._put_once(name, data, "overwrite"))

    def _names(self) -> list[str]:
        def request() -> list[str]:
            return [each["path"] for batch in self._obstore.list(self._store, CHUNKS) for each in batch]

        return self._call(request)

    def _remove(self, names: Sequence[str]) -> None:
        self._call(partial(self._obstore.delete, self._store, names))

    def _put_once(self, name: str, data: bytes, mode: Any) -> _Tag:
        result = self._obstore.put(self._store, name, data, mode=mode, use_multipart=False)
        return _tag(result)

    def _tag_of_head(self) -> str | None:
        try:
            tag: str | None = self._obstore.head(self._store, HEAD)["e_tag"]
            return tag
        except FileNotFoundError:
            return None

    def _get_once(self, name: str) -> StoredNode | None:
        try:
            found = self._obstore.get(self._store, name)
            return StoredNode(bytes(found.bytes()), _tag(found.meta))
        except FileNotFoundError:
            return None

    def _call(self, request: Callable[[], T]) -> T:
        def explain_refusal() -> T:
            try:
                return request()
            except (self._errors.BaseError, NotImplementedError) as error:
                if self._away(error) is not None:
                    raise
                raise LogError(
                    f"the object store refuses {self._address}: {short(error)}. Check the credentials in the environment and "
                    "that they allow to read, write, list and remove objects there"
                ) from error

        return self.patience.run(explain_refusal, self._away)

    def _away(self, error: Exception) -> str | None:
        if isinstance(error, _UnderWayError):
            return "it is busy with another request for the head"
        is_of_store = isinstance(error, self._errors.BaseError) and not isinstance(error, self._refusals)
        return short(error) if is_of_store and is_unanswered(error) else None


def _tag(facts: Any) -> _Tag:
    return {name: facts[name] for name in ("e_tag", "version") if facts[name] is not None}
