"""Records as bytes: JSON with a version; what cannot be read is an error that says so."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from trident.cluster_errors import ClusterError

__all__ = ["Reading", "dump"]

_VERSION = 1


class Reading:
    """Turns what is wrong with the bytes of a record into an error that says so."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> Callable[[bytes], dict[str, Any]]:
        return self._read

    def _read(self, data: bytes) -> dict[str, Any]:
        found = json.loads(data)
        if found["version"] != _VERSION:
            raise ClusterError(
                f"a {self._what} is of version {found['version']}; this version of the software reads {_VERSION}. Use the "
                "version that runs in the cluster"
            )
        return dict(found)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, ValueError | KeyError | TypeError | AttributeError):
            raise ClusterError(
                f"the {self._what} cannot be read ({error!r}); was it written by another program?"
            ) from error


def dump(data: Mapping[str, Any]) -> bytes:
    """Return a record as JSON."""
    text = json.dumps({"version": _VERSION, **data}, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace")  # a message of an error may have characters that have no UTF-8
