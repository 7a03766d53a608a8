"""Where a log is, a folder or an address of servers: opened to be written, followed, or read as a history.

The history is each committed batch, in order, from the segments that are kept, the oldest first. A record at the end of one may
be that of a driver that was replaced while it wrote: the winners of the log tell.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import datetime

from trident.errors import CorruptLogError, HistoryGapError
from trident.log.file_log import FileLog
from trident.log.framing import decode
from trident.log.lock import SegmentName
from trident.log.log_interface import TransactionLog, TransactionLogReader
from trident.log.log_reader import LogReader
from trident.log.log_state import LogState, header_state
from trident.log.postgres_records import PostgresRecords
from trident.log.record_store import ObjectRecords, RecordStore
from trident.log.records import AdoptRecord, CommitRecord, Record, RenameRecord, record_from_data
from trident.log.stored_log import StoredLog, StoredReader
from trident.log.zookeeper_records import ZooKeeperRecords
from trident.retention import Retention
from trident.servers.log_addresses import (
    ObjectAddress,
    PostgresAddress,
    ZooKeeperAddress,
    is_log_address,
    log_address_of,
)

Beside = Callable[[Record, int], None]
"""Called with each record between those of batches that is still there, and the last batch before it."""


def open_log(
    log_dir: str | os.PathLike[str], topology: str, takeover: bool = False, history: Retention | None = None
) -> TransactionLog:
    """Open the log of a topology, or make one, and become its writer; see `FileLog.open`."""
    address = os.fspath(log_dir)
    if is_log_address(address):
        return StoredLog.open(store_at(address), topology, takeover=takeover, history=history)
    return FileLog.open(address, topology, takeover=takeover, history=history)


def open_reader(log_dir: str | os.PathLike[str]) -> TransactionLogReader:
    address = os.fspath(log_dir)
    return StoredReader(store_at(address)) if is_log_address(address) else LogReader(address)


def store_at(address: str) -> RecordStore:
    match place := log_address_of(address):
        case ZooKeeperAddress():
            return ZooKeeperRecords(place)
        case PostgresAddress():
            return PostgresRecords(place)
        case ObjectAddress():
            return ObjectRecords(place)


def read_history(
    log_dir: str | os.PathLike[str],
    first: int = 1,
    last: int | None = None,
    since: datetime | None = None,
    beside: Beside = lambda *_: None,
) -> Iterator[CommitRecord]:
    """Yield the committed batches that a log still has; see `trident.read_history`."""
    # In local time, a moment of the year 1 may be none that this machine knows.
    since_ms = None if since is None or since.year == 1 else since.timestamp() * 1000
    with closing(open_reader(log_dir)) as reader:
        for commit in _Reading(reader, os.fspath(log_dir), beside).commits(first, since_ms):
            if last is not None and commit.txid > last:
                return
            if commit.txid >= first and (since_ms is None or commit.at_ms >= since_ms):
                yield commit


class _Reading:
    """One reading of a history; batches up to `adopted` may be missing, as this log did not commit them."""

    def __init__(self, reader: TransactionLogReader, place: str, beside: Beside) -> None:
        self._reader, self._place, self._end, self._beside = reader, place, reader.refresh(), beside
        self.given: int | None = None
        self.adopted = 0
        self._to_come = list(self._end.renamed)  # changes of names behind what was given
        self._damage: list[str] = []  # in the segments since the last batch that was given

    def commits(self, first: int, since_ms: float | None) -> Iterator[CommitRecord]:
        """Yield the batches; some before `first` or `since_ms` may be among them."""
        for name in self._select(self._reader.segments(), first, since_ms):
            for record in map(self._as_called_now, self._records(name)):
                if not isinstance(record, CommitRecord):
                    self._beside(record, self.given or 0)
                if isinstance(record, AdoptRecord):
                    self.adopted = max(self.adopted, record.txid)
                elif isinstance(record, CommitRecord) and self._counts(record):
                    self._check_gap(record.txid)
                    self.given = record.txid
                    self._damage.clear()
                    yield record
        self._check_gap(self._end.txid + 1)

    def _as_called_now(self, record: Record) -> Record:
        """Return a record with the names that the log has for states at its end."""
        txid = record.txid if isinstance(record, CommitRecord) else self.given or 0
        if isinstance(record, RenameRecord) and (txid, record.old, record.new) in self._to_come:
            self._to_come.remove((txid, record.old, record.new))
        for _, old, new in [each for each in self._to_come if each[0] >= txid]:
            record = record.with_state_names({old: new})
        return record

    def _counts(self, record: CommitRecord) -> bool:
        is_new = (self.given or 0) < record.txid <= self._end.txid
        return is_new and self._end.winners.winner(record.txid) == record.attempt

    def _check_gap(self, txid: int) -> None:
        if self.given is None:
            missing = f"batches before {txid}" if self._damage else None
        elif txid > max(self.given, self.adopted) + 1:
            missing = f"batches {self.given + 1} to {txid - 1}"
        else:
            missing = None
        if missing is not None:
            cause = "; ".join(self._damage) or "they are missing, and they are not the oldest ones (were they removed?)"
            raise HistoryGapError(self._place, missing, txid, cause)

    def _records(self, name: SegmentName) -> Iterator[Record]:
        """Yield the commits in the header of a segment, then its records, up to where it is damaged; none if it was removed."""
        where, number = f"{self._place}, segment {name.file}", 0
        try:
            for number, payload in enumerate(self._reader.read_segment(name)):
                if number:
                    yield record_from_data(decode(payload))
                else:
                    yield from self._fold_header(header_state(payload, name, where))
        except CorruptLogError as error:
            path, offset, reason = error.args
            self._damage.append(f"{path}{f', byte {offset}' if offset else ''}: {reason}")
        except ValueError as error:
            self._damage.append(f"{where}, record {number}: {error}")

    def _fold_header(self, header: LogState) -> Iterator[Record]:
        """Yield the commits in a header; what is missing between them, or behind them, was adopted before it was written."""
        for position, record in enumerate(header.history):
            if position:
                self.adopted = max(self.adopted, record.txid - 1)
            yield record
        self.adopted = max(self.adopted, header.txid)

    def _select(self, names: Sequence[SegmentName], first: int, since_ms: float | None) -> Sequence[SegmentName]:
        """Leave out the segments before the last one whose header has all that is wanted of them."""
        if first <= 1 and since_ms is None:
            return names
        for position in range(len(names) - 1, 0, -1):
            header = self._header(names[position])
            oldest = header.history[0] if header is not None and header.history else None
            if oldest and (oldest.txid <= first or (since_ms is not None and oldest.at_ms < since_ms)):
                return names[position:]
        return names

    def _header(self, name: SegmentName) -> LogState | None:
        """Return what a header says; None if the segment is not there, or damaged, which is told when it is read."""
        try:
            payload = next(self._reader.read_segment(name, header_only=True), None)
            return None if payload is None else header_state(payload, name, self._place)
        except CorruptLogError:
            return None
