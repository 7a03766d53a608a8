"""`ObjectClient`: objects below a prefix, of which one is replaced on condition that it is the one last seen.

The condition is `If-Match`, for the first one `If-None-Match`. A request without an answer is made again; if it is refused
then, the object tells whether the first one was carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from trident.errors import TridentError
from trident.extras import needs_package
from trident.object_stores import is_unanswered, short
from trident.servers.log_addresses import ObjectAddress
from trident.servers.patience import Patience

T = TypeVar("T")
Tag = dict[str, str]
"""What distinguishes the content of an object from others."""

_CONDITIONS = "conditions"
_TIMEOUT = {"timeout": "15s", "connect_timeout": "5s"}
_NEVER = {"e_tag": '"00000000000000000000000000000000"', "version": "1"}


class _UnderWayError(Exception):
    """The store was changing the object for another request."""


class ObjectClient:
    """The objects at an address.

    `what`: what is kept there, for messages: "a log".
    `error`: what a refusal raises.
    `answer_s`: how long the store may take for a request.
    """

    def __init__(
        self,
        address: ObjectAddress,
        what: str,
        patience: Patience,
        error: type[TridentError],
        answer_s: float | None = None,
    ) -> None:
        with needs_package(f"{what} in an object store", "object-store", "obstore"):
            import obstore
            from obstore import exceptions
            from obstore.store import from_url
        self._obstore, self._errors, self._error = obstore, exceptions, error
        self._address, self._what, self._patience = address, what, patience
        limits = dict.fromkeys(_TIMEOUT, f"{1000 * answer_s:.0f}ms") if answer_s else _TIMEOUT
        options: Any = {"client_options": {**limits, "allow_http": True}, "retry_config": {"max_retries": 0}}
        self._store: Any = from_url(address.url, **options)
        self._refusals = (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileNotFoundError)

    def check_conditions(self) -> None:
        """Raise the error unless the store refuses what its conditions forbid."""

        def refuses(condition: Any) -> bool:
            try:
                self._put_once(_CONDITIONS, b"", condition)
            except self._refusals as error:
                if isinstance(error, FileNotFoundError):
                    raise self._error(
                        f"cannot keep {self._what} at {self._address}: {short(error)}. Make the bucket"
                    ) from error
                return True
            return False

        def request() -> bool:
            return (refuses("create") or refuses("create")) and refuses(_NEVER)

        if not self.call(request):
            raise self._error(
                f"cannot keep {self._what} at {self._address}: this store carries out a put whose condition does not hold "
                "(If-None-Match, If-Match), so it could not keep two writers apart. Use a store that has conditional writes, "
                f"or keep {self._what} elsewhere"
            )

    def swap(self, name: str, data: bytes, tag: Tag | None) -> Tag | None:
        """Replace an object that has the tag, or make one if that is None; return the new tag, None if it was refused.

        The data must be other than any that the object has had.
        """

        def request() -> Tag | None:
            try:
                return self._put_once(name, data, "create" if tag is None else tag)
            except self._refusals:
                found = self._get_once(name)
                if found is not None and found[0] == data:
                    return found[1]  # by a request whose answer was lost
                if found is not None and found[1] == tag:
                    raise _UnderWayError from None
                return None

        return self.call(request)

    def put(self, name: str, data: bytes) -> None:
        self.call(lambda: self._put_once(name, data, "overwrite"))

    def get(self, name: str) -> tuple[bytes, Tag] | None:
        return self.call(partial(self._get_once, name))

    def get_other(self, name: str, known: Tag | None) -> tuple[bytes, Tag] | None:
        """Return an object that has another tag than is known, None if it has that one. Without patience.

        Raises `FileNotFoundError`: there is none.
        """
        try:
            return self._read(name, None if known is None else {"if_none_match": known["e_tag"]})
        except self._errors.NotModifiedError:
            return None

    def tag_of(self, name: str) -> str | None:
        def request() -> str | None:
            try:
                tag: str | None = self._obstore.head(self._store, name)["e_tag"]
                return tag
            except FileNotFoundError:
                return None

        return self.call(request)

    def names(self, prefix: str) -> list[str]:
        def request() -> list[str]:
            return [each["path"] for batch in self._obstore.list(self._store, prefix) for each in batch]

        return self.call(request)

    def remove(self, names: Sequence[str]) -> None:
        self.call(partial(self._obstore.delete, self._store, names))

    def call(self, request: Callable[[], T]) -> T:
        """Return what a request returns, with patience; a refusal of the store is an error that says what to check."""

        def explain_refusal() -> T:
            try:
                return request()
            except (self._errors.BaseError, NotImplementedError) as error:
                if self._text_if_away(error) is not None:
                    raise
                raise self._error(
                    f"the object store refuses {self._address}: {short(error)}. Check the credentials in the environment and "
                    "that they allow to read, write, list and remove objects there"
                ) from error

        return self._patience.run(explain_refusal, self._text_if_away)

    def _put_once(self, name: str, data: bytes, mode: Any) -> Tag:
        return _tag(self._obstore.put(self._store, name, data, mode=mode, use_multipart=False))

    def _get_once(self, name: str) -> tuple[bytes, Tag] | None:
        try:
            return self._read(name)
        except FileNotFoundError:
            return None

    def _read(self, name: str, options: Any = None) -> tuple[bytes, Tag]:
        found = self._obstore.get(self._store, name, options=options)
        return bytes(found.bytes()), _tag(found.meta)

    def _text_if_away(self, error: Exception) -> str | None:
        if isinstance(error, _UnderWayError):
            return f"it is busy with another request for {self._what}"
        is_of_store = isinstance(error, self._errors.BaseError) and not isinstance(error, self._refusals)
        return short(error) if is_of_store and is_unanswered(error) else None


def _tag(facts: Any) -> Tag:
    return {name: facts[name] for name in ("e_tag", "version") if facts[name] is not None}
