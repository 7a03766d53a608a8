"""Commits that are one write, over rows in a dict: the contracts, and a write whose answer was lost."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import pytest

from trident.errors import BackendError, CommitOrderError, FencedError, UnsupportedOperation
from trident.state import Sentinel, StateConf, Txid
from trident.state.encoding.serializers import CodecSerializer
from trident.state.forwarding import SerializedMap
from trident.storekit import Puts, StoredRows, WholeCommitMap
from trident.testing import BackingMapContract, FencedMapContract, Limits, MapStateContract

CONF = StateConf("topology", "state")


class DictRows(StoredRows):
    """Rows in memory; `lost` answers are those of writes that were made and sent again."""

    stored: ClassVar[defaultdict[str, dict[bytes, bytes]]] = defaultdict(dict)
    max_key_bytes = 2_600

    def __init__(self, prefix: str) -> None:
        self.rows = self.stored[prefix]
        self.lost = 0

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        return {key: self.rows[key] for key in keys if key in self.rows}

    def write(self, puts: Puts, sentinel: bytes = b"", found: bytes | None = None, new: bytes = b"") -> bool:
        if sentinel and self.rows.get(sentinel) != found:
            return False
        for key, value in puts.items() if not sentinel else (*puts.items(), (sentinel, new)):
            self.rows.pop(key, None)
            if value is not None:
                self.rows[key] = value
        if self.lost:
            self.lost -= 1
            return self.write(puts, sentinel, found, new)
        return True

    def pages(self) -> Iterator[Sequence[bytes]]:
        yield [key for key in self.rows if key < b" "]

    def empty(self) -> None:
        self.rows.clear()

    def close(self) -> None:
        pass


def open_map(conf: StateConf, partition: int, num_partitions: int) -> SerializedMap:
    backing = WholeCommitMap(DictRows(conf.prefix), conf, partition, f"partition {partition} of {conf.prefix}")
    return SerializedMap(backing, CodecSerializer())


LIMITS = Limits(
    max_key_bytes=2_600, repartitions=True, fences="all", moves_at_commit=True, atomic_put=True, isolated=True,
    atomic_commit=True, lists=True, removes=True, resets=True,
)  # fmt: skip


class TestBackingMap(BackingMapContract):
    factory = staticmethod(open_map)
    limits = LIMITS


class TestFencedMap(FencedMapContract):
    factory = staticmethod(open_map)
    limits = LIMITS


class TestMapState(MapStateContract):
    factory = staticmethod(open_map)
    limits = LIMITS


@pytest.fixture
def rows(request: pytest.FixtureRequest) -> DictRows:
    return DictRows(request.node.name)


def commit(backing: WholeCommitMap, number: int, value: bytes, attempt: int = 0) -> None:
    txid = Txid(number, attempt, incarnation="log")
    backing.read_sentinel()
    backing.move_sentinel(Sentinel("log", number, attempt))
    backing.begin(txid)
    backing.multi_put([("key",)], [value])
    backing.end(txid)


def test_a_commit_whose_answer_was_lost_is_made_once(rows: DictRows) -> None:
    backing = WholeCommitMap(rows, CONF, 0, "a state")
    rows.lost = 1
    commit(backing, 1, b"one")
    rows.lost = 1
    commit(backing, 2, b"two")
    assert backing.multi_get([("key",)]) == [b"two"]
    assert backing.read_sentinel() == Sentinel("log", 2, 0)


def test_without_a_log_the_puts_of_a_commit_that_was_given_up_are_not_written(rows: DictRows) -> None:
    backing = WholeCommitMap(rows, CONF, 0, "a state")
    backing.begin(Txid(1))
    backing.multi_put([("given up",)], [b"1"])
    backing.begin(Txid(1))
    backing.multi_put([("key",)], [b"2"])
    backing.end(Txid(1))
    assert backing.multi_get([("given up",), ("key",)]) == [None, b"2"]


def test_another_run_of_the_same_attempt_is_told_from_this_one(rows: DictRows) -> None:
    first, second = (WholeCommitMap(rows, CONF, 0, "a state") for _ in range(2))
    txid = Txid(1, 0, incarnation="log")
    first.read_sentinel()
    first.move_sentinel(Sentinel("log", 1, 0))
    first.begin(txid)
    commit(second, 1, b"of the second")
    with pytest.raises((FencedError, BackendError)):
        first.end(txid)
    assert first.multi_get([("key",)]) == [b"of the second"]


def test_a_claim_that_was_overtaken_stays_refused_after_the_sentinel_was_read_again(rows: DictRows) -> None:
    late, other = (WholeCommitMap(rows, CONF, 0, "a state") for _ in range(2))
    commit(late, 1, b"of the late one")
    commit(other, 2, b"of the other one", attempt=1)
    assert late.read_sentinel() == Sentinel("log", 2, 1)
    with pytest.raises(FencedError):
        late.multi_put([("key",)], [b"too late"])
    assert other.multi_get([("key",)]) == [b"of the other one"]


def test_an_end_without_its_begin_and_a_write_of_a_reader_are_refused(rows: DictRows) -> None:
    backing = WholeCommitMap(rows, CONF, 0, "a state")
    with pytest.raises(CommitOrderError, match="end of batch 1 .*without its begin: a state"):
        backing.end(Txid(1))
    reader = WholeCommitMap(rows, replace(CONF, read_only=True), 0, "a state")
    with pytest.raises(UnsupportedOperation, match="cannot begin a commit: a state was opened to be read only"):
        reader.begin(Txid(1))
