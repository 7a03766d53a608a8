"""Commits that tasks stage and their driver publishes (E8 of docs/architecture.md).

A task does all of a commit but the transaction: it compares the sentinel, reads, collects puts, and stages them as a data
file. The driver adds that file to the table, in one transaction based on the version that the task read, and does the
upkeep. A task keeps its index for the next batch: what it staged is in it as soon as the table shows it. If the table shows
something else, the task reads it again.
A state may outgrow memory: then a task keeps what changed since the last merge, and the driver merges from the table. If the
driver commits some batches by itself (small ones, with `engine="auto"`), it has an index for as long as no task stages, and
merges from that: the index goes on with each base that it has made (`Publishing`).
"""

from __future__ import annotations

from collections.abc import Callable

from states.delta.commit_notes import STAGED_AS, CommitNote
from states.delta.index import Index, StagedCommit
from states.delta.puts import Puts
from states.delta.staged_files import Staged, StagedFiles, StagedName
from states.delta.state_table import StateTable
from trident.errors import SecondRunError, StateError
from trident.state.txid import Sentinel, Txid

__all__ = ["Staging"]


class Staging:
    """What tasks have staged of one state; in a task, and in the driver."""

    def __init__(self, table: StateTable, partition: int, what: str) -> None:
        self._files, self._partition, self._what = StagedFiles(table), partition, what
        self.is_on = False
        """Whether the commit that ends is staged."""
        self._staged: Staged | None = None
        self._has_looked = False  # for what earlier drivers and their tasks have staged

    # ---- in a task ------------------------------------------------------------------------------------------------

    def staged_by(self, commit: Callable[[], None]) -> bytes:
        """Call what ends the commit, and stage it instead of committing it; return what `publish` needs."""
        self.is_on, self._staged = True, None
        try:
            commit()
        finally:
            self.is_on = False
        if self._staged is None:
            raise StateError(f"nothing was staged for {self._what}")
        return self._staged.packed()

    def begin(self, claim: Sentinel, txid: Txid) -> None:
        """Delete what earlier attempts have staged; raise `SecondRunError` if another run of this task has staged."""
        own = StagedName.of_commit(claim, self._partition)
        if any(name.is_other_run_of(own) for name in self._files.names()):
            raise SecondRunError(self._what, str(claim))
        self._files.discard(claim.incarnation, txid.attempt - 1)

    def stage(self, index: Index, puts: Puts, claim: Sentinel) -> None:
        """Write puts and the sentinel into a file that no version shows yet, based on the version of the index."""
        assert index.version is not None, "a commit has begun"
        name, seq = StagedName.of_commit(claim, self._partition), index.next_seq
        self._staged = self._files.stage(puts.table(seq, claim), seq, index.version, name)
        index.staged(StagedCommit(str(name), puts, claim, seq))

    # ---- in the driver --------------------------------------------------------------------------------------------

    def publish(self, own: Sentinel, txid: Txid, staged: Staged, app: str) -> bool:
        """Make what was staged a version of the table; False if another commit than a compaction came first."""
        self._has_looked = True
        note = CommitNote.of_commit(txid).metadata() | {STAGED_AS: staged.name}
        return self._files.publish(staged, (app, own.version), note)

    def discard(self, own: Sentinel) -> None:
        """Delete what attempts up to this one have staged."""
        self._files.discard(own.incarnation, own.attempt)

    def discard_all(self) -> None:
        """Delete all that is staged."""
        self._has_looked = True
        self._files.discard("", 0)

    def discard_earlier(self) -> None:
        """Delete once what earlier drivers and their tasks left."""
        if not self._has_looked:
            self.discard_all()
