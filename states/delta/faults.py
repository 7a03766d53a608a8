"""Errors of delta-rs become errors of `trident.errors`: what was tried, what was found, what to do."""

import errno
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from trident.errors import BackendError, StateError, StoreAwayError
from trident.fields import type_of_json
from trident.object_stores import is_refused, is_unanswered, short
from trident.storekit import driver_package

_PERMANENT = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
AFRESH = "move the folder of the state away and start: the start says what keeps the totals right"
_OS_ERROR = re.compile(r"os error (\d+)|Os \{ code: (\d+)")


class VersionMoved(Exception):
    """The commit was refused, because another writer has committed since the version that it is based on. Internal."""


def driver() -> Any:
    with driver_package("Delta", "deltalake", "delta"):
        import deltalake
        import deltalake.exceptions
    return deltalake


@contextmanager
def reading(path: str, doing: str) -> Iterator[None]:
    """Turn errors of delta-rs and Arrow about a table that cannot be read into `StateError` or `BackendError`."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, ValueError) and not _is_of_driver(error):
            raise
        if _os_error(error) is not None or is_refused(error) or is_unanswered(error):
            raise _backend_error(path, doing, error) from _brief(error)
        raise StateError(
            f"cannot {doing} Delta table {path}: it is damaged or of an unknown format: {short(error)}. "
            f"Nothing was written. Restore it from a copy. If there is none, {AFRESH}"
        ) from _brief(error)


@contextmanager
def writing(path: str, doing: str) -> Iterator[None]:
    """Turn errors of delta-rs about a commit into `VersionMoved`, `StateError` or `BackendError`."""
    errors = driver().exceptions
    try:
        yield
    except errors.CommitFailedError as error:
        raise VersionMoved(short(error)) from _brief(error)
    except errors.SchemaMismatchError as error:
        raise StateError(f"cannot {doing} Delta table {path}: its columns changed: {short(error)}") from _brief(error)
    except BaseException as error:
        if not _is_of_driver(error):
            raise
        if "Invalid table version" in str(error):  # the version it is based on is no longer in the log
            raise VersionMoved(short(error)) from _brief(error)
        raise _backend_error(path, doing, error) from _brief(error)


def _is_of_driver(error: BaseException) -> bool:
    """Whether delta-rs or Arrow raised; delta-rs panics, which is no `Exception`, where it cannot open its own channels."""
    is_panic = type(error).__name__ == "PanicException"
    return is_panic or isinstance(error, (driver().exceptions.DeltaError, OSError, pa.ArrowException))


def _brief(error: BaseException) -> BaseException:
    # The cause in a traceback: the text of delta-rs without the backtrace of its own threads.
    if not isinstance(error, driver().exceptions.DeltaError):
        return error
    brief: BaseException = type(error)(short(error))
    return brief.with_traceback(error.__traceback__)


def columns(schema: Any) -> list[str]:
    """Return `name: type` of each column of a Delta schema."""
    fields = json.loads(schema.to_json())["fields"]
    return [f"{field['name']}: {type_of_json(field['type'], str)}" for field in fields]


def _backend_error(path: str, doing: str, error: BaseException) -> BackendError:
    number = _os_error(error)
    if is_refused(error):
        advice = "check the keys and rights in storage_options"
        return BackendError(f"cannot {doing} Delta table {path}: {short(error)}; {advice}", retryable=False)
    if is_unanswered(error):
        message = f"cannot {doing} Delta table {path}: {short(error)}; the batch may be replayed"
        return StoreAwayError(message, f"the object store of {path}")
    retryable = number not in _PERMANENT
    advice = "the batch may be replayed" if retryable else "make the directory writable for this process"
    if number in _FULL:
        advice = f"free some space on the disk; {advice}"
    if number == errno.ENOENT:
        advice = f"if another program has deleted it, bring it back from a copy; if there is none, {AFRESH}"
    if number in (errno.EMFILE, errno.ENFILE):
        advice = f"let this process have more files open (ulimit -n); {advice}"
    return BackendError(f"cannot {doing} Delta table {path}: {short(error)}; {advice}", retryable)


def _os_error(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    match = _OS_ERROR.search(str(error))
    return None if match is None else int(match[1] or match[2])
