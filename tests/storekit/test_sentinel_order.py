"""One table of cases for the order of sentinels: the rule itself, and the fence over a register."""

from __future__ import annotations

import pytest

from tests.storekit.sentinel_cases import SENTINEL_CASES, SentinelCase
from trident.state.sentinel import check_move
from trident.state.txid import Sentinel
from trident.storekit import FieldsCodec, RecordFence, Register, SentinelRecord

cases = pytest.mark.parametrize("case", SENTINEL_CASES, ids=[case.meaning for case in SENTINEL_CASES])


class Slot(Register):
    """A register in memory."""

    def __init__(self) -> None:
        self.value: bytes | None = None

    def read(self) -> bytes | None:
        return self.value

    def swap(self, found: bytes | None, new: bytes) -> bytes | None:
        if self.value == found:
            self.value = new
        return self.value


def record(sentinel: Sentinel | None) -> bytes | None:
    return None if sentinel is None else FieldsCodec().encode(SentinelRecord(sentinel, ()))


@cases
def test_the_rule_answers_each_case(case: SentinelCase) -> None:
    if case.error is None:
        check_move("the store", case.own, case.found, case.seen, case.force)
    else:
        with pytest.raises(case.error, match="the store"):
            check_move("the store", case.own, case.found, case.seen, case.force)


@cases
def test_a_fence_over_a_cell_keeps_the_rule(case: SentinelCase) -> None:
    slot = Slot()
    fence = RecordFence(slot, FieldsCodec(), "the store")

    def move() -> None:
        fence.check_move(case.own, case.force)
        fence.lay(SentinelRecord(case.own, ()))

    slot.value = record(case.seen)
    found = fence.read()
    assert (None if found is None else tuple(found.sentinel)) == (None if case.seen is None else tuple(case.seen))
    slot.value = before = record(case.found)
    if case.error is None:
        move()
        fence.check()
        assert slot.value == record(case.own)
        return
    with pytest.raises(case.error, match="the store"):
        move()
    assert slot.value == before
    fence.check()  # nothing of this writer's is there that could be gone


def test_a_writer_learns_that_its_record_was_replaced() -> None:
    slot = Slot()
    fence, successor = (RecordFence(slot, FieldsCodec(), "the store") for _ in range(2))
    fence.lay(SentinelRecord(Sentinel("log", 1, 5), ()))
    fence.check()
    successor.read()
    successor.lay(SentinelRecord(Sentinel("log", 1, 6), ()))
    with pytest.raises(Exception, match="a writer with a higher attempt|batch 1 attempt 6"):
        fence.check()
    fence.read()
    with pytest.raises(Exception, match="batch 1 attempt 6"):  # to have read the other record makes it no writer
        fence.check()
    fence.forget()
    fence.check()
