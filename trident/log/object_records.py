"""Keeps the log of a topology in an object store (`record_store.py`).

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

from trident.errors import LogError
from trident.extras import needs_package
from trident.log.log_state import CommittedUpTo
from trident.log.record_store import CHUNKS, HEAD, Head, RecordStore
from trident.nodes.interface import StoredNode
from trident.object_stores import is_unanswered, short
from trident.servers.log_addresses import ObjectAddress
from trident.servers.patience import Patience
from trident.state.kinds import LaterWrite

T = TypeVar("T")
_Tag = dict[str, str]
logger = logging.getLogger(__name__)

_CONDITIONS = "conditions"
_TIMEOUT = {"timeout": "15s", "connect_timeout": "5s"}
_NEVER = {"e_tag": '"00000000000000000000000000000000"', "version": "1"}


class _UnderWayError(Exception):
    """The store was changing the object for another request."""


class ObjectRecords(RecordStore):
    """The log at an address."""

    head_bytes = 64 << 10

    def __init__(self, address: ObjectAddress) -> None:
        with needs_package("a log in an object store", "object-store", "obstore"):
            import obstore
            from obstore import exceptions
            from obstore.store import from_url
        self.patience, self.place = Patience("the object store", address), str(address)
        self._obstore, self._errors = obstore, exceptions
        options: Any = {"client_options": {**_TIMEOUT, "allow_http": True}, "retry_config": {"max_retries": 0}}
        self._store: Any = from_url(address.url, **options)
        self._refusals = (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileNotFoundError)

    def get(self, names: Sequence[str]) -> list[StoredNode | None]:
        return [self._call(partial(self._get_once, name)) for name in names]

    def claim(self, head: Head, before: Head) -> _Tag | None:
        self._check_conditions()
        return self._swap(head)

    def replace(
        self, head: Head, chunks: Mapping[str, bytes], committed: CommittedUpTo, beside: Sequence[LaterWrite] = ()
    ) -> _Tag | None:
        for name, data in chunks.items():
            self._call(partial(self._put_once, name, data, "overwrite"))
        return self._swap(head)

    def names(self, most: int | None = None) -> list[str]:
        def request() -> list[str]:
            found: list[str] = []
            for batch in self._obstore.list(self._store, CHUNKS):  # in their order, as far as they are asked for
                found += [each["path"] for each in batch]
                if most is not None and len(found) >= most:
                    break
            return found

        return self._call(request)

    def remove(self, names: Sequence[str]) -> None:
        self._call(partial(self._obstore.delete, self._store, names))

    def release(self, head: Head) -> None:
        try:
            self._swap(replace(head, is_held=False, turn=head.turn + 1))
        except LogError as error:
            logger.warning("transaction log %s: cannot say that its driver has ended: %s", self.place, error)

    def _check_conditions(self) -> None:
        """Raise `LogError` unless the store refuses what its conditions forbid."""

        def refuses(condition: Any) -> bool:
            try:
                self._put_once(_CONDITIONS, b"", condition)
            except self._refusals as error:
                if isinstance(error, FileNotFoundError):
                    raise LogError(f"cannot keep a log at {self.place}: {short(error)}. Make the bucket") from error
                return True
            return False

        def request() -> bool:
            return (refuses("create") or refuses("create")) and refuses(_NEVER)

        if not self._call(request):
            raise LogError(
                f"cannot keep a log at {self.place}: this store carries out a put whose condition does not hold "
                "(If-None-Match, If-Match), so it could not keep two drivers apart. Use a store that has conditional writes, "
                "or keep the log elsewhere"
            )

    def _swap(self, head: Head) -> _Tag | None:
        """Replace the head on condition that it has the tag, or is not there if that is None; return the new one's."""
        data, tag = head.data, head.tag

        def request() -> _Tag | None:
            try:
                return self._put_once(HEAD, data, "create" if tag is None else tag)
            except self._refusals:
                found = self._get_once(HEAD)
                if found is not None and found.data == data:
                    own: _Tag = found.version  # by a request whose answer was lost
                    return own
                if (None if found is None else found.version) == tag:
                    raise _UnderWayError from None
                return None

        return self._call(request)

    def _put_once(self, name: str, data: bytes, mode: Any) -> _Tag:
        result = self._obstore.put(self._store, name, data, mode=mode, use_multipart=False)
        return _tag(result)

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
                    f"the object store refuses {self.place}: {short(error)}. Check the credentials in the environment and "
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
