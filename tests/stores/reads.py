"""Reads at the committed snapshot while batches are being committed.

Every batch adds 1 to each of twenty keys, so after batch T every value is T: a read that shows two numbers has mixed two
batches, and a read that shows another number than its snapshot's is wrong. One attempt in three stops half-way, after
having added something else, and is tried again. Readers are threads with instances of their own.
"""

import contextlib
import random
import threading
from collections import Counter
from typing import Any

from tests.stores.catalog import Home
from tests.stores.drivers import KEYS, Driver
from trident.errors import StaleTransactionError
from trident.log.log_interface import MemoryLog
from trident.steps.key_columns import partitions_of

READERS = 2
READS_PER_BATCH = 20
"""The writer commits no faster than that, or a slow reader would see another snapshot at every read."""
BATCHES = 20
"""Every reader reads on until it has seen so many snapshots."""
WAIT_S = 3600


class _Crash(Exception):
    """The attempt ends here."""


class _Shared:
    """What readers and writer tell each other."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.reads = threading.Semaphore(0)
        self.readers: list[_Reader] = []

    def goes_on(self) -> bool:
        """Whether somebody still reads."""
        return not self.end.is_set() and any(reader.is_alive() for reader in self.readers)

    def pace(self) -> None:
        """Wait until the readers have read enough for another batch, or are done."""
        for _ in range(READS_PER_BATCH):
            while not self.reads.acquire(timeout=0.1):
                if not self.goes_on():
                    return


class _Reader(threading.Thread):
    """Reads all keys over and over, each time at the newest snapshot, until it has read often enough."""

    def __init__(self, home: Home, name: str, log: MemoryLog, reads: int, shared: _Shared) -> None:
        super().__init__(name=f"reader of {name}", daemon=True)
        self._instances, self._log, self._state, self._shared = home.open(name, read_only=True), log, name, shared
        self._places = partitions_of(KEYS, home.store.partitions)
        self._reads = reads
        self.counts: Counter[str] = Counter()
        self.snapshots: list[int] = []
        self.failed: BaseException | None = None

    def run(self) -> None:
        """Read until there were enough reads, or something is wrong."""
        try:
            while self.counts["reads"] < self._reads or len(self.snapshots) < BATCHES:
                if self._shared.end.is_set():
                    break
                self._read()
                self._shared.reads.release()
        except BaseException as error:  # noqa: BLE001  the campaign raises it
            self.failed = error
            self._shared.end.set()
        finally:
            for instance in self._instances:
                getattr(instance, "close", lambda: None)()

    def _read(self) -> None:
        snapshot = self._log.state.snapshot(self._state)
        values: list[Any] = []
        try:
            for partition, places in self._places.items():
                values += self._instances[partition].multi_get_at([KEYS[place] for place in places], snapshot)
        except StaleTransactionError:
            self.counts["taken again"] += 1  # committed meanwhile: the reader is told, and takes a newer snapshot
            return
        self.counts["reads"] += 1
        if set(values) != {snapshot.txid or None}:
            raise AssertionError(f"a read after batch {snapshot.txid} shows {Counter(values)}")
        if not self.snapshots or self.snapshots[-1] != snapshot.txid:
            self.snapshots.append(snapshot.txid)


class _Writer:
    """Commits batches; its attempts stop where they are told to."""

    def __init__(self, home: Home, name: str, rng: random.Random) -> None:
        self._rng, self._chunks_left, self.failures = rng, 0, 0
        self.driver = Driver(home, name, reach=self._reach, cache=rng.choice([0, 100]))

    def commit(self) -> None:
        """Commit the next batch; maybe after attempts that stop half-way with another content."""
        while self._rng.random() < 1 / 3:
            self._chunks_left = self._rng.randint(2, 8)
            with contextlib.suppress(_Crash):
                self.driver.write(dict.fromkeys(KEYS, 1_000_000))
            self._chunks_left = 0
            self.driver.fail()
            self.failures += 1
        self.driver.commit(dict.fromkeys(KEYS, 1))

    def _reach(self, point: str) -> None:
        if point == "chunk" and self._chunks_left:
            self._chunks_left -= 1
            if self._chunks_left == 0:
                raise _Crash


def read_during_commits(home: Home, reads: int, seed: int) -> Counter[str]:
    """Read so often while batches are committed; return how often, over how many batches."""
    rng, shared = random.Random(seed), _Shared()
    writer = _Writer(home, home.fresh_name("reads"), rng)
    writer.commit()
    log, name = writer.driver.log, writer.driver.name
    shared.readers = readers = [_Reader(home, name, log, -(-reads // READERS), shared) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    try:
        while shared.goes_on():
            writer.commit()
            shared.pace()
    finally:
        shared.end.set()
        for reader in readers:
            reader.join(WAIT_S)
        writer.driver.close()
    for reader in readers:
        if reader.failed is not None:
            raise AssertionError(f"{home.store.name}, seed {seed}: {reader.failed}") from reader.failed
        assert reader.snapshots == sorted(set(reader.snapshots)), "a reader went back"
    counts = sum((reader.counts for reader in readers), Counter[str]())
    counts["batches seen"] = min(len(reader.snapshots) for reader in readers)
    counts["batches"], counts["failed attempts"] = log.state.txid, writer.failures
    return counts
