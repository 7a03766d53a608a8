"""The record of a sentinel comes back, and anything else is refused."""

from __future__ import annotations

from typing import Any

import pytest

from trident.errors import CorruptValueError
from trident.state.txid import Sentinel
from trident.storekit import FieldsCodec, SentinelRecord, sentinel_of

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
