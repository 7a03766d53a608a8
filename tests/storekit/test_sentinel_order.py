"""One table of cases for the order of sentinels: the rule and the fence over a register; and how they are recorded."""

from typing import Any

import pytest

from tests.storekit.sentinel_cases import SENTINEL_CASES, SentinelCase
from trident.errors import CorruptValueError
from trident.state.sentinel import check_move
from trident.state.txid import Sentinel
from trident.storekit import FieldsCodec, RecordFence, Register, SentinelRecord, sentinel_of

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


SENTINEL = Sentinel("é", 3, 1 << 40, "words/count", False)
NOTED = FieldsCodec(("incarnation", "txid", "attempt", "renewal", "sealed", "place", "run"))


@pytest.mark.parametrize("run", ["", "4f1c"])
def test_a_record_is_its_fields_in_the_order_of_the_codec(run: str) -> None:
    data = NOTED.encode(SentinelRecord(SENTINEL._replace(run=run), (7,)))
    assert data == f'["é",3,1099511627776,7,false,"words/count","{run}"]'.encode()
    found = NOTED.decode(data, "state p")
    assert (tuple(found.sentinel), found.notes) == ((*SENTINEL[:5], run), (7,))


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"{}", b"7", b"[]", b'["log",3]', b'["log",3,5,7,true,"place"]',
             b'["log","3",5,7,true,"place",""]', b'["log",3,5.0,7,true,"place",""]', b'["log",true,5,7,true,"place",""]',
             b'["log",3,5,7,"yes","place",""]', b'["log",3,5,7,true,null,""]', b'["log",3,5,7,true,"place",8]',
             b'["log",3,5,7,true,"place","run",8]'],
)  # fmt: skip
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptValueError, match="read the sentinel of state p: .* another program wrote it"):
        NOTED.decode(data, "state p")


@pytest.mark.parametrize(
    "fields",
    [
        None,
        {},
        "abc",
        (1, 2, 3),
        ["log", 1],
        ["log", 1, 2, "place"],
        ["log", 1, 2, "place", True, 3],
        ["log", 1, 2, "place", True],
    ],
)
def test_fields_that_are_no_sentinel_are_refused(fields: Any) -> None:
    with pytest.raises(CorruptValueError, match="state p"):
        sentinel_of(fields, "state p")
