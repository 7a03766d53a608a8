"""The objects below a prefix of a bucket, of which some are replaced by compare-and-set (`If-Match`, `If-None-Match`) alone.

A request without an answer is made again. If it is refused then, the object tells whether the first one was carried out; so no
content of such an object may come twice.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from trident.errors import TridentError
from trident.extras import needs_package
from trident.nodes.interface import StoredNode
from trident.object_stores import is_unanswered, short
from trident.servers.log_addresses import ObjectAddress
from trident.servers.patience import Patience

T = TypeVar("T")
Tag = dict[str, str]  # what a condition knows the content of an object by

_CONDITIONS = "conditions"
_CONNECT_S = 5.0
_NEVER = {"e_tag": '"00000000000000000000000000000000"', "version": "1"}


class _UnderWayError(Exception):
    """The store was changing the object for another request."""


class ObjectStore:
    """The objects below an address, where `what` is kept; `error` is raised if the store refuses."""

    def __init__(
        self, address: ObjectAddress, what: str, patience: Patience, error: type[TridentError], answer_s: float
    ) -> None:
        with needs_package(f"{what} in an object store", "object-store", "obstore"):
            import obstore
            from obstore import exceptions
            from obstore.store import from_url
        self.patience, self.place, self._what, self._error = patience, str(address), what, error
        self._obstore, self._errors = obstore, exceptions
        within = {"timeout": f"{answer_s * 1000:.0f}ms", "connect_timeout": f"{min(answer_s, _CONNECT_S) * 1000:.0f}ms"}
        options: Any = {"client_options": {**within, "allow_http": True}, "retry_config": {"max_retries": 0}}
        self._store: Any = from_url(address.url, **options)
        self._refusals = (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileNotFoundError)

    def get(self, name: str) -> StoredNode | None:
        """Return what an object holds, with its tag as its version; None if there is none."""
        return self._call(partial(self._get_once, name))

    def put(self, name: str, data: bytes) -> None:
        self._call(partial(self._put_once, name, data, "overwrite"))

    def swap(self, name: str, data: bytes, tag: Tag | None) -> Tag | None:
        """Replace an object if it has the tag, or make it if that is None and there is none; return its new tag, else None."""

        def request() -> Tag | None:
            try:
                return self._put_once(name, data, "create" if tag is None else tag)
            except self._refusals:
                found = self._get_once(name)
                if found is not None and found.data == data:
                    own: Tag = found.version  # by a request whose answer was lost
                    return own
                if (None if found is None else found.version) == tag:
                    raise _UnderWayError from None
                return None

        return self._call(request)

    def tags(self, prefix: str | None = None, most: int | None = None, waits: bool = True) -> dict[str, object]:
        """Return the names below a prefix, at least `most` of the first ones, each with what changes when it is replaced."""

        def request() -> dict[str, object]:
            found: dict[str, object] = {}
            for batch in self._obstore.list(self._store, prefix):  # as far as they are asked for
                found |= {each["path"]: each["e_tag"] or each["last_modified"] for each in batch}
                if most is not None and len(found) >= most:
                    break
            return found

        if waits:
            return self._call(request)
        try:
            return request()
        except self._errors.BaseError as error:
            raise self.patience.error(short(error)) from error

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects; harmless if some are not there."""

        def request() -> None:
            try:
                self._obstore.delete(self._store, names)
            except FileNotFoundError:  # some stores end at the first one that is not there
                for name in names:
                    with suppress(FileNotFoundError):
                        self._obstore.delete(self._store, name)

        self._call(request)

    def check_conditions(self) -> None:
        def refuses(condition: Any) -> bool:
            try:
                self._put_once(_CONDITIONS, b"", condition)
            except self._refusals as error:
                if isinstance(error, FileNotFoundError):
                    raise self._error(
                        f"cannot keep {self._what} at {self.place}: {short(error)}. Make the bucket"
                    ) from error
                return True
            return False

        def request() -> bool:
            return (refuses("create") or refuses("create")) and refuses(_NEVER)

        if not self._call(request):
            raise self._error(
                f"cannot keep {self._what} at {self.place}: this store carries out a put whose condition does not hold "
                "(If-None-Match, If-Match), so it could not keep two writers apart. Use a store that has conditional writes, "
                f"or keep {self._what} elsewhere"
            )

    def _put_once(self, name: str, data: bytes, mode: Any) -> Tag:
        return _tag(self._obstore.put(self._store, name, data, mode=mode, use_multipart=False))

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
                raise self._error(
                    f"the object store refuses {self.place}: {short(error)}. Check the credentials in the environment and "
                    "that they allow to read, write, list and remove objects there"
                ) from error

        return self.patience.run(explain_refusal, self._away)

    def _away(self, error: Exception) -> str | None:
        if isinstance(error, _UnderWayError):
            return "it is busy with another request for the object"
        is_of_store = isinstance(error, self._errors.BaseError) and not isinstance(error, self._refusals)
        return short(error) if is_of_store and is_unanswered(error) else None


def _tag(facts: Any) -> Tag:
    return {name: facts[name] for name in ("e_tag", "version") if facts[name] is not None}
