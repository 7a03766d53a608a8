"""TridentTuple: the row that user code sees."""

from __future__ import annotations

import pickle

import pytest

from trident import Fields, TridentTuple
from trident.errors import TopologyError

ROW = TridentTuple(Fields("word: string, n: bigint, x: double, ok: boolean, raw: binary"), ("the", 3, 0.5, True, b"\0"))
EMPTY = TridentTuple(ROW.fields, (None,) * 5)


def test_values_are_found_by_index_and_by_name() -> None:
    assert (ROW[0], ROW["n"], ROW.get_value_by_field("x"), ROW[-1]) == ("the", 3, 0.5, b"\0")
    assert ROW[1:3] == (3, 0.5)
    assert (len(ROW), list(ROW), ROW.values) == (5, list(ROW.values), ("the", 3, 0.5, True, b"\0"))


@pytest.mark.parametrize("values", [(1,), (1, 2, 3), ()])
def test_a_row_has_a_value_for_each_field(values: tuple[int, ...]) -> None:
    with pytest.raises(TopologyError, match=r"the 2 fields \['a', 'b'\]"):
        TridentTuple(Fields(["a", "b"]), values)


def test_a_row_equals_a_plain_row_of_the_same_values() -> None:
    same = TridentTuple(Fields("other"), ("the",))
    assert TridentTuple(Fields("word"), ("the",)) == same
    assert hash(same) == hash(TridentTuple(Fields("word"), ("the",)))
    assert ROW == ("the", 3, 0.5, True, b"\0")
    assert list(ROW.values) == ROW
    assert ROW != "the"
    assert ROW != ("the",)


def test_a_row_survives_pickling_and_shows_its_names() -> None:
    assert pickle.loads(pickle.dumps(ROW)) == ROW
    assert repr(ROW) == "[word='the', n=3, x=0.5, ok=True, raw=b'\\x00']"


def test_typed_getters_give_the_value_or_none() -> None:
    assert ROW.get_string(0) == "the"
    assert ROW.get_long("n") == ROW.get_integer(1) == 3
    assert ROW.get_double("x") == 0.5
    assert ROW.get_boolean("ok") is True
    assert ROW.get_binary("raw") == b"\0"
    assert [EMPTY.get_string(0), EMPTY.get_long(1), EMPTY.get_double(2), EMPTY.get_boolean(3), EMPTY.get_binary(4)] == [
        None
    ] * 5


@pytest.mark.parametrize(
    ("getter", "field", "text"),
    [
        ("get_long", "word", r"value 'word' of \[word='the', .* is str, not int"),
        ("get_long", "ok", "is bool, not int"),
        ("get_double", "n", "is int, not float"),
        ("get_string", 1, "value 1 of .* is int, not str"),
        ("get_boolean", "n", "is int, not bool"),
        ("get_binary", "word", "is str, not bytes"),
    ],
)
def test_a_typed_getter_refuses_another_type(getter: str, field: str | int, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        getattr(ROW, getter)(field)


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="no field 'count' among"):
        ROW["count"]
