"""Structs as columns: all of their members, or an error."""

from __future__ import annotations

from typing import Any

import pytest

from trident.errors import CorruptValueError
from trident.storekit.plain_columns import PlainShape

SHAPE = PlainShape((("k", "string"),), (("a", "bigint"), ("b", "string")), is_struct=True)


@pytest.mark.parametrize("others", [[], [None], [(3, "z")]])
def test_a_member_that_is_not_declared_is_refused_as_one_that_is_missing(others: list[Any]) -> None:
    assert SHAPE.columns([{"a": 1, "b": "x"}, *others])[0][0] == 1
    for wrong, said in (({"a": 1, "b": "x", "c": 2}, r"\['c'\] are not declared"), ({"a": 1}, r"\['b'\] are missing")):
        with pytest.raises(CorruptValueError, match=said):
            SHAPE.columns([{"a": 1, "b": "x"}, *others, wrong])
