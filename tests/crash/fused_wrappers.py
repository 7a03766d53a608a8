"""Wrappers of the seams at which a fuse can go off: the backing map, the state, the files of the log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, cast
from unittest import mock

from tests.crash.fuse import OPENING, RECONCILING, Fuse
from trident.log import log_address, postgres_records, record_store
from trident.log.file_log import FileLog, LogFile
from trident.log.framing import HEAD_BYTES, decode
from trident.log.postgres_records import PostgresRecords
from trident.log.record_store import Head
from trident.log.stored_log import StoredLog
from trident.log.zookeeper_records import ZooKeeperRecords
from trident.nodes.object_store import ObjectStore
from trident.state import IBackingMap, Key, MapState, OpaqueMap, Sentinel, Snapshot, SnapshottableMap, Txid
from trident.state.forwarding import MapWrapper
from trident.state.kinds import LaterWrite
from trident.state.txid import EVERYTHING_WON


class Chunks(MapWrapper):
    """Below the chunks of a put: reaches P6 before the second one of a commit."""

    def __init__(self, delegate: IBackingMap[Any], fuse: Fuse) -> None:
        super().__init__(delegate)
        self._fuse = fuse
        self._txid = self._puts = 0

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        self._txid, self._puts = sentinel.txid, 0
        super().move_sentinel(sentinel, force)

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        if self._puts:
            self._fuse.reach("P6", self._txid)
        self._puts += 1
        self.inner.multi_put(keys, values)


class CrashingMap(MapWrapper):
    """Above the chunks: reaches P5 and P7, P15 before a put, and the second half of P14 when the sentinel is read.

    A store that makes its puts durable at the end of the commit loses its answer there, another one after the put.
    """

    def __init__(self, delegate: IBackingMap[Any], fuse: Fuse, recovery: Fuse) -> None:
        super().__init__(delegate)
        self._fuse, self._recovery = fuse, recovery
        self._txid = 0
        self._late = self.inner.offers("end")

    def read_sentinel(self) -> Sentinel | None:
        self._recovery.reach(RECONCILING)
        return super().read_sentinel()

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        self._txid = sentinel.txid
        super().move_sentinel(sentinel, force)

    def multi_get(self, keys: Sequence[Key]) -> Sequence[Any]:
        values: Sequence[Any] = self.inner.multi_get(keys)
        self._fuse.reach("P5", self._txid)
        return values

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        self._fuse.reach("P15", self._txid)
        self.inner.multi_put(keys, values)
        if not self._late:
            self._fuse.reach("P7", self._txid)

    def end(self, txid: Txid) -> None:
        super().end(txid)
        self._fuse.reach("P7", txid)


class CrashingState(SnapshottableMap):
    """Reaches P9 before the commit of a state that is not the first, P4 after its begin and P8 after its end."""

    def __init__(self, map_state: MapState[Any], fuse: Fuse, victim: bool, later: bool) -> None:
        super().__init__(map_state)
        self._fuse, self._victim, self._later = fuse, victim, later

    def begin_commit(self, txid: int) -> None:
        if self._later:
            self._fuse.reach("P9", txid)
        super().begin_commit(txid)
        if self._victim:
            self._fuse.reach("P4", txid)

    def commit(self, txid: int) -> None:
        super().commit(txid)
        if self._victim:
            self._fuse.reach("P8", txid)


class StormOpaqueMap(OpaqueMap):
    """Storm's three fields: it knows no attempts, so whatever an earlier batch wrote counts as committed."""

    def keeps_attempts(self) -> bool:
        return False

    def begin_commit(self, txid: int) -> None:
        super().begin_commit(txid)
        commit = Txid.of(txid)
        self._txid = Txid(int(txid), commit.attempt, EVERYTHING_WON, commit.incarnation, commit.expected)

    def multi_get_at(self, keys: Sequence[Key], snapshot: Snapshot) -> list[Any]:
        return super().multi_get_at(keys, Snapshot(snapshot.txid, EVERYTHING_WON))


class CrashingFile(LogFile):
    """A file of the log that reaches P11 in the middle of a record and P13 when a segment waits for its name."""

    fuse: ClassVar[Fuse] = Fuse()

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._number = int(re.findall(r"-(\d+)\.log", path.name)[0])
        self._records = self._begun_after = 0

    def write(self, data: bytes) -> None:
        self._records += 1
        content = decode(data[HEAD_BYTES:])
        if self._records == 1:
            self._begun_after = content["state"]["txid"]
        txid = content["txid"] if content.get("record") == "commit" else 0
        if txid and self.fuse.is_armed("P11", txid):
            super().write(data[: len(data) // 2])
            super().sync()
            self.fuse.reach("P11", txid)
            super().write(data[len(data) // 2 :])  # for one that was only paused
            return
        super().write(data)

    def sync(self) -> None:
        super().sync()
        if self._records == 1:  # the header; the file is not yet renamed
            if self._number == 1:
                self.fuse.reach(OPENING)
            elif self._begun_after:  # not before there is a batch to lose
                self.fuse.reach("P13")


class CrashingStored(StoredLog):
    """A log in a `RecordStore` that reach P11 and P13 where the head is about to be changed, or the statement to be sent.

    What goes into the head otherwise is a chunk of its own here, in ZooKeeper of several nodes, so P11 has half of an append.
    """

    fuse: ClassVar[Fuse] = Fuse()
    ahead: ClassVar[list[tuple[str, int]]] = []

    def _begin_segment(self) -> None:
        if self._claim.head.segment.epoch != self._claim.epoch:
            self.ahead.append((OPENING, 0))
        elif self.state.txid:  # not before there is a batch to lose
            self.ahead.append(("P13", 0))
        super()._begin_segment()

    def _write(self, head: Head, payloads: Sequence[bytes], *rest: Any, **kept: Any) -> None:
        content = decode(payloads[-1])
        if content.get("record") == "commit":
            self.ahead.append(("P11", content["txid"]))
        super()._write(head, payloads, *rest, **kept)

    @classmethod
    def reach(cls) -> None:
        """The head is about to be changed."""
        points = cls.ahead.copy()
        cls.ahead.clear()
        for point in points:
            cls.fuse.reach(*point)


class _LastWrite:
    """All of a transaction is written, and nothing committed."""

    def __init__(self, stored: type[CrashingStored]) -> None:
        self._stored = stored

    def write(self, _connection: Any) -> bool:
        self._stored.reach()
        return True


@contextmanager
def crashing_log(fuse: Fuse, segment_bytes: int) -> Iterator[None]:
    """Have topologies that are started here write logs of `CrashingFile`s in segments of `segment_bytes`."""

    class File(CrashingFile):
        pass

    File.fuse = fuse

    class Log(FileLog):
        file_type = File

        @classmethod
        def open(cls, *args: Any, **kwargs: Any) -> Log:
            return super().open(*args, segment_bytes=segment_bytes, **kwargs)

    class Stored(CrashingStored):
        ahead: ClassVar[list[tuple[str, int]]] = []

        @classmethod
        def open(cls, *args: Any, **kwargs: Any) -> Stored:
            return super().open(*args, segment_bytes=segment_bytes, **kwargs)

    Stored.fuse = fuse

    class InPostgres(PostgresRecords):
        def _ask(self, query: str, given: Mapping[str, Any] | None = None) -> list[Any]:
            if query == postgres_records._WRITE:
                Stored.reach()
            return super()._ask(query, given)

        def _write_all(self, given: Any, beside: Any, connection: Any) -> bool:
            return super()._write_all(given, [*beside, cast(LaterWrite, _LastWrite(Stored))], connection)

    class Objects(ObjectStore):
        def swap(self, *args: Any) -> Any:
            Stored.reach()
            return super().swap(*args)

    class InZooKeeper(ZooKeeperRecords):
        head_bytes = part_bytes = 100

        def _write(self, *steps: Any) -> Any:
            if steps[-1].path == "/head":
                Stored.reach()
            return super()._write(*steps)

    with (
        mock.patch.object(log_address, "PostgresRecords", InPostgres),
        mock.patch.object(record_store, "ObjectStore", Objects),
        mock.patch.object(record_store.ObjectRecords, "head_bytes", 100),
        mock.patch.object(log_address, "StoredLog", Stored),
        mock.patch.object(log_address, "FileLog", Log),
        mock.patch.object(log_address, "ZooKeeperRecords", InZooKeeper),
    ):
        yield
