"""The life of a commit to a topic, and why each batch is written once (R7, R8, R9).

One commit::

    begin_commit(txid)   compares the sentinel, and takes the transactional id: what another producer left open is aborted,
                         and that one is refused from now on. Then it compares the sentinel again, and begins a transaction
    write(records)       nothing if the sentinel is of this very batch, else the records
    commit(txid)         puts the sentinel of this attempt into the transaction, and commits it

The invariant: the topic holds the records of a batch, for readers of committed records, exactly if the sentinel is of that
batch or of a later one, because both become visible in one transaction. The sentinel was read when no other producer could
commit any more. So a replay finds either no record of its batch and writes all, or all and writes none. The second happens
if a driver died after Kafka's commit and before the record in the log, or if the answer to the commit was lost. Then only
the sentinel moves, to the attempt that the log will record.

What was written stays as the first attempt wrote it. So the state is transactional: a replay must bring the same tuples.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from states.kafka.options import KafkaTopicOptions
from states.kafka.topic_writer import TopicRecord, TopicWriter
from trident.errors import CommitOrderError, StaleTransactionError, UnsupportedOperation
from trident.state.interfaces import State, StateConf, StateFacts, StateType
from trident.state.sentinel import check_sentinel
from trident.state.txid import Sentinel, Txid
from trident.storekit import FieldsCodec, RecordFence, SentinelRecord, refuse_read_only


class TopicSink(State):
    """A `State` that writes records; see `ToTopic` for what feeds it."""

    kind = StateType.TRANSACTIONAL
    facts = StateFacts(can_be_emptied=False)

    def __init__(self, options: KafkaTopicOptions, conf: StateConf) -> None:
        self.place, self._read_only = conf.prefix, conf.read_only
        self._what = f"state {conf.prefix!r} in topic {options.topic!r} of Kafka at {options.bootstrap}"
        self._writer = TopicWriter(options, options.prefix or conf.prefix, self._what, conf.read_only)
        # The token distinguishes a commit whose answer was lost from another run of the same attempt.
        self._fence = RecordFence(self._writer, FieldsCodec((*Sentinel._fields, "token")), self._what)
        self._own: Sentinel | None = None  # of the commit that has begun
        self._is_written = False  # by an earlier attempt

    def begin_commit(self, txid: int) -> None:
        """Compare the sentinel, and begin a transaction. One that an earlier attempt left open is aborted."""
        refuse_read_only(self._read_only, "begin a commit", self._what)
        commit, self._own = Txid.of(txid), None
        own = commit.sentinel or Sentinel("", int(commit), commit.attempt)  # without a log, its incarnation has no name
        own = own._replace(place=self.place)
        if not self._writer.has_id:
            self._compare(commit, own)  # so that a driver that was replaced does not take the id from its successor
        self._writer.take()
        found = self._compare(commit, own)
        self._is_written = found is not None and (found.incarnation, found.txid) == (own.incarnation, own.txid)
        self._writer.begin()
        self._own = own

    def _compare(self, commit: Txid, own: Sentinel) -> Sentinel | None:
        """Return the sentinel of the topic, which this commit may follow."""
        found = self.read_sentinel()
        if commit.sentinel is not None:
            check_sentinel(self.place, 0, found, commit, self.place)
        elif found is not None and found.txid > commit:
            raise StaleTransactionError(self.place, "the topic", int(commit), found.txid)
        self._fence.check_move(own)
        return found

    def write(self, records: Iterable[TopicRecord]) -> None:
        """Write records, unless an earlier attempt of the batch has; all of a batch or none."""
        if self._own is None:
            raise CommitOrderError(f"{self._what} was written outside begin_commit and commit")
        if not self._is_written:
            self._writer.write(records)

    def commit(self, txid: int) -> None:
        own, self._own = self._own, None
        if own is None or own.txid != txid:
            raise CommitOrderError(f"commit({txid!s}) without its begin_commit: {self._what}")
        self._lay(own)

    def read_sentinel(self) -> Sentinel | None:
        found = self._fence.read()
        return None if found is None else found.sentinel

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Lay a sentinel without records, if what was read last is still there; `force` also moves it back."""
        refuse_read_only(self._read_only, "move the sentinel", self._what)
        self._own, sentinel = None, sentinel._replace(place=self.place)
        self._fence.check_move(sentinel, force)
        self._lay(sentinel)

    def reset(self) -> None:
        """Refuse to empty the topic.

        Raises `UnsupportedOperation`: always. What other programs have read cannot be taken back.
        """
        raise UnsupportedOperation(
            f"empty {self._what}: other programs may have read its records. To write everything again, give another topic "
            "and a new log_dir"
        )

    def close(self) -> None:
        """Abort an open transaction and close the connections."""
        self._own = None
        self._writer.close()

    def _lay(self, sentinel: Sentinel) -> None:
        self._writer.mark = sentinel.txid
        self._fence.lay(SentinelRecord(sentinel, (os.urandom(8).hex(),)))
