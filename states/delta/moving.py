"""Moves the changes of a state of an earlier version from its path into the folder inside, in one step.

The changes are copied first; then one Delta transaction at the path replaces them by the rows that people read. That
transaction is the step: before it, the table at the path is the state and the copy counts for nothing; after it, the copy is
the state. So a kill in between is harmless.

The order matters if another writer moves the same table at the same time. The version of the copy is read before the table
at the path is looked at, and both are written only as the next version. So if another writer has moved it meanwhile, nothing
here is written, except a copy of the very same rows.
"""

from __future__ import annotations

from states.delta.change_table import ChangeTable, VersionMoved
from states.delta.commit_notes import CommitNote
from states.delta.layout import Layout, in_order
from states.delta.options import DeltaOptions
from states.delta.published import PublishedRows
from states.delta.published_table import PublishedTable, Shown
from states.delta.table_places import CHANGES
from trident.state.txid import Sentinel, Snapshot, Txid

__all__ = ["move_over"]


def move_over(
    old: ChangeTable,
    table: PublishedTable,
    layout: Layout,
    rows: PublishedRows,
    options: DeltaOptions,
    txid: Txid,
    sentinel: Sentinel | None,
    name: str,
) -> bool:
    """Move the changes of the version last seen; False if another writer came first, and nothing happened.

    Parameters
    ----------
    old
        The table of the changes, at the path.
    table, rows
        What it becomes.
    txid
        The commit that begins, so that all before it is committed.
    sentinel
        That of the version.
    name
        Of the state.
    """
    version, latest = old.version, layout.reduced(in_order(old.scan()), drop_deleted=True)
    snapshot, before = Snapshot(int(txid) - 1, txid.winners), txid.expected or sentinel
    copy = ChangeTable(old.path, layout.schemas, layout.description, options, inside=CHANGES)
    copy.is_alone = True
    copied_on = copy.create()
    if old.refresh() != version:
        return False
    try:
        copy.copy(layout.with_sentinel(latest, sentinel), (f"trident/{name}/moved", version), _note(txid, before))
        if table.refresh() != version:
            return False
        table.show(rows.of(latest, snapshot), Shown(snapshot.txid, before, copied_on + 1), name)
    except VersionMoved:
        return False
    return True


def _note(txid: Txid, before: Sentinel | None) -> dict[str, str]:
    """Return the note of the copy: it is the state after the batch before, as far as anyone can look back."""
    if before is None:
        return {}
    note = CommitNote.of_commit(txid)
    return note._replace(txid=before.txid, attempt=before.attempt, incarnation=before.incarnation).metadata()
