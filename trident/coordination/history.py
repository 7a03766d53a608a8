"""The history of a log: each committed batch, in order, from the segments that are kept.

A commit record says all of its batch (attempt, definitions, time), so what is written anyway is enough. Segments go from the
oldest on. What the header of a segment says is true, whoever wrote the segments before it: a record at the end of one that
its successor does not know is that of a driver that was replaced while it wrote.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime

from trident.coordination.framing import decode
from trident.coordination.lock import SegmentName
from trident.coordination.log_address import open_reader
from trident.coordination.log_reader import header_state
from trident.coordination.log_state import LogState
from trident.coordination.memory_log import TransactionLogReader
from trident.coordination.records import AdoptRecord, CommitRecord, Record, record_from_data
from trident.errors import CorruptLogError, LogError


def read_history(
    log_dir: str | os.PathLike[str], first: int = 1, last: int | None = None, since: datetime | None = None
) -> Iterator[CommitRecord]:
    """Yield the committed batches that a log still has, in order; its driver may be running.

    A record has the batch's txid, the attempt that won, the definition of each spout, and the time of the commit. One
    segment is in memory at a time.

    Parameters
    ----------
    first, last
        The batches to begin and to end with.
    since
        Leave out batches that were committed before, by the clocks of their drivers.

    Raises
    ------
    LogError
        There is no log, it cannot be read, or what comes next was removed while it was read.
    CorruptLogError
        A segment is damaged; all batches before it were given. Those behind it are given to a reader whose `first` is there.
    """
    after_ms = None if since is None else since.timestamp() * 1000
    with closing(open_reader(log_dir)) as reader:
        for commit in _commits(reader, log_dir, first):
            if last is not None and commit.txid > last:
                return
            if commit.txid >= first and (after_ms is None or commit.at_ms >= after_ms):
                yield commit


def _commits(reader: TransactionLogReader, place: object, first: int) -> Iterator[CommitRecord]:
    now = reader.refresh()
    end, known = now.txid, now.winners
    present = _present(reader, place, _from(reader, place, reader.segments(), first))
    current, txid, is_begun = next(present, None), 0, False
    while current is not None:
        (name, header), following = current, next(present, None)
        up_to, winners = (end, known) if following is None else (following[1].txid, following[1].winners)
        payloads = reader.read_segment(name)
        if payloads is not None:
            if is_begun and header.txid > txid and not any(each.txid == txid + 1 for each in header.history):
                raise LogError(
                    f"the history of {place} lacks batches {txid + 1} to {header.txid}: they were removed while it was "
                    "read, or a segment is lost. Read again"
                )
            for record in _records(header, payloads[1:], f"{place}, segment {name.file}"):
                if isinstance(record, AdoptRecord):
                    txid = max(txid, min(record.txid, up_to))
                elif isinstance(record, CommitRecord) and txid < record.txid <= min(up_to, end):
                    if winners.winner(record.txid) == record.attempt:
                        yield record
                        txid = record.txid
            txid, is_begun = max(txid, min(header.txid, end)), True
        current = following


def _present(
    reader: TransactionLogReader, place: object, names: Iterable[SegmentName]
) -> Iterator[tuple[SegmentName, LogState]]:
    """Yield the segments that are still there, and the state in their header."""
    for name in names:
        header = _header(reader, place, name)
        if header is not None:
            yield name, header


def _from(
    reader: TransactionLogReader, place: object, names: Sequence[SegmentName], first: int
) -> Sequence[SegmentName]:
    """Leave out the segments that end before batch `first`."""
    for position in range(len(names) - 1, 0, -1) if first > 1 else ():
        header = _header(reader, place, names[position])
        if header is not None and header.txid < first:
            return names[position:]
    return names


def _header(reader: TransactionLogReader, place: object, name: SegmentName) -> LogState | None:
    payloads = reader.read_segment(name, header_only=True)
    return None if payloads is None else header_state(payloads[0], name, place)


def _records(header: LogState, payloads: Iterable[bytes], where: str) -> Iterator[Record]:
    yield from header.history
    for number, payload in enumerate(payloads, 1):
        try:
            yield record_from_data(decode(payload))
        except ValueError as error:
            raise CorruptLogError(where, 0, f"record {number}: {error}") from error
