"""Says who may commit next: the sentinel of the version that a commit is based on, and the meaning of a refused commit."""

from __future__ import annotations

import pyarrow.compute as pc

from states.delta.commit_notes import only_compactions
from states.delta.layout import SENTINEL_COLUMN, SEQ_COLUMN
from states.delta.state_table import ABSENT, StateTable
from trident.errors import BackendError, FencedError, StateError
from trident.state.txid import Sentinel
from trident.storekit import displaced

__all__ = ["moved_by_compactions", "newest_sentinel", "overtaken"]


def newest_sentinel(table: StateTable) -> Sentinel | None:
    """Return the sentinel of the version last seen, None if there is none; reads no other rows."""
    if table.version == ABSENT:
        return None
    # The newest file has it, unless another program wrote that.
    newest = max(table.files(), key=lambda file: file.last, default=None)
    for files in ([] if newest is None else [newest], None):
        marks = table.scan(~pc.field(SENTINEL_COLUMN).is_null(), [SENTINEL_COLUMN, SEQ_COLUMN], files).to_pylist()
        latest = max(marks, key=lambda row: int(row[SEQ_COLUMN]), default=None)
        if latest is not None:
            return Sentinel(**latest[SENTINEL_COLUMN])
    return None


def moved_by_compactions(table: StateTable, since: int) -> bool:
    """Move to the newest version; return whether there were only compactions since, which change no content."""
    newest = table.refresh()
    return newest >= since and only_compactions(table.notes(newest - since), since, newest)


def overtaken(
    what: str, own: Sentinel | None, found: Sentinel | None, seen: Sentinel | None, version: int
) -> StateError | FencedError:
    """Return the error of a commit that was refused because another writer has committed, as `version` at the latest."""
    if own is not None and found != seen:
        return displaced(what, own, found, seen)
    writer = "another writer" if own is None else f"the writer of {own}"
    return BackendError(
        f"commit of {writer} to {what} was refused: version {version} was committed meanwhile, its sentinel is {found}. "
        "Nothing was written; the batch may be replayed"
    )
