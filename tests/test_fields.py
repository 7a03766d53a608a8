"""Fields: how names and types are written, and every text of a refusal; TridentTuple: the row that user code sees."""

import datetime
import decimal
import pickle
from typing import Any, Optional, Union

import pyarrow as pa
import pytest

from trident import Fields, TopologyError, TridentTuple
from trident.arrow import arrow_type, schema_of, table_of
from trident.fields import normal_type, type_of_hint, widens


@pytest.mark.parametrize(
    "given",
    [
        ("word: string, n: int",),
        ("word: string", "n: int"),
        (["word: string", "n: int"],),
        (("word:string", "n :int"),),
        (Fields("word: string"), "n: integer"),
        ("word: str , n: INT,",),
    ],
)
def test_the_ways_to_write_fields_are_equal(given: tuple[Any, ...]) -> None:
    fields = Fields(*given)
    assert (fields.names, fields.types) == (("word", "n"), ("string", "int"))
    assert fields == Fields("word: string", "n: int")


def test_a_type_that_nobody_said_is_none() -> None:
    assert Fields("word, n: int").types == (None, "int")
    assert str(Fields("word, n: int")) == "word, n: int"


def test_fields_are_a_sequence_of_names() -> None:
    fields = Fields("a, b: int, c")
    assert list(fields) == ["a", "b", "c"]
    assert len(fields) == 3
    assert fields[1] == "b"
    assert "c" in fields
    assert "d" not in fields
    assert fields.position("c") == 2
    assert fields.type_of("b") == "int"
    assert hash(fields) == hash(Fields("a", "b: int", "c"))
    assert pickle.loads(pickle.dumps(fields)) == fields


def test_select_keeps_types_and_takes_the_order_named() -> None:
    assert Fields("a: int, b: string, c: date").select(["c", "a"]) == Fields("c: date, a: int")


def test_concat_appends() -> None:
    assert Fields("a: int").concat(Fields("b: string")) == Fields("a: int, b: string")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Fields("a", "b", "a"), r"duplicate field 'a' in \['a', 'b', 'a'\]"),
        (lambda: Fields("two words"), "cannot read 'two words' as a field; write 'name' or 'name: type'"),
        (lambda: Fields(7), "cannot read 7 as fields; write 'name', 'name: type' or a list of them"),  # type: ignore[arg-type]
        (lambda: Fields(["a", 7]), "cannot read .'a', 7. as fields"),  # type: ignore[list-item]
        (lambda: Fields("a").select(["b"]), r"no field 'b'; it has \['a'\]"),
        (lambda: Fields("a").select(["b"], "lines"), r"no field 'b' of stream 'lines'; it has \['a'\]"),
        (lambda: Fields("a").concat(Fields("a")), r"cannot add field 'a': it has \['a'\]; choose another name"),
        (lambda: Fields("a").concat(Fields("a"), "s"), "cannot add field 'a' to stream 's'"),
        (
            lambda: Fields("a: text"),
            "'text' is not a Spark type; known are bigint, binary, .*, array<>, map<>, struct<>",
        ),
        (lambda: Fields("a: array<int"), "'array<int' is not a Spark type: '>' is missing"),
        (lambda: Fields("a: map<int>"), "'map<int>' is not a Spark type"),
        (lambda: Fields("a: struct<b>"), "'' is not a Spark type"),
        (lambda: Fields("a: int(x)"), r"'int\(x\)' is not a Spark type"),
        (lambda: Fields("a: decimal(39,2)"), r"'decimal\(39,2\)' is no type of decimals: they have 1 to 38 digits"),
        (lambda: Fields("a: array<decimal(0)>"), r"'decimal\(0\)' is no type of decimals"),
        (
            lambda: Fields("a: decimal(5, 6)"),
            "'decimal.5, 6.' is no type of decimals: .* none to all are behind the point",
        ),
        (
            lambda: schema_of(Fields("a")),
            "the type of field 'a' is not known; declare it as 'a: string' or another type",
        ),
        (lambda: arrow_type("colour"), "'colour' is not a Spark type"),
    ],
)
def test_what_cannot_be_read_is_refused(call: Any, text: str) -> None:
    with pytest.raises(TopologyError, match=text):
        call()


def test_the_place_of_an_unknown_field_is_a_key_error() -> None:
    with pytest.raises(KeyError, match=r"no field 'b' among \['a'\]"):
        Fields("a").position("b")


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("Long", "bigint"), ("VARCHAR(10)", "string"), ("short", "smallint"), ("byte", "tinyint"), ("real", "float"),
        ("bytes", "binary"), ("decimal", "decimal(10,0)"), ("numeric( 12 , 2 )", "decimal(12,2)"),
        ("dec(12)", "decimal(12,0)"), ("decimal(38,38)", "decimal(38,38)"),
        ("array< long >", "array<bigint>"), ("map<str, array<int>>", "map<string,array<int>>"),
        ("struct<a: int, b: map<str,str>>", "struct<a:int,b:map<string,string>>"), ("timestamp_ltz", "timestamp"),
    ],
)  # fmt: skip
def test_types_have_one_normal_spelling(written: str, normal: str) -> None:
    assert normal_type(written) == normal
    assert normal_type(normal) == normal


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("string", pa.string()),
        ("tinyint", pa.int8()),
        ("decimal(12,2)", pa.decimal128(12, 2)),
        ("decimal(12)", pa.decimal128(12, 0)),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("array<array<int>>", pa.list_(pa.list_(pa.int32()))),
        ("map<string,bigint>", pa.map_(pa.string(), pa.int64())),
        ("struct<a:int,b:array<string>>", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
    ],
)
def test_every_type_has_its_arrow_type(ddl: str, expected: pa.DataType) -> None:
    assert arrow_type(normal_type(ddl)) == expected


def test_rows_become_a_table_of_the_declared_types() -> None:
    table = table_of(Fields("a: int, b: array<string>"), [(1, ["x"]), (None, None)])
    assert table.schema == pa.schema([("a", pa.int32()), ("b", pa.list_(pa.string()))])
    assert table.to_pylist() == [{"a": 1, "b": ["x"]}, {"a": None, "b": None}]
    assert table_of(Fields("a: int"), []).num_rows == 0


@pytest.mark.parametrize(
    ("hint", "ddl"),
    [
        (str, "string"), (int, "bigint"), (float, "double"), (bool, "boolean"), (bytes, "binary"),
        (datetime.date, "date"), (datetime.datetime, "timestamp"), (decimal.Decimal, "decimal(38,18)"),
        (Optional[int], "bigint"), (str | None, "string"), (list[int], "array<bigint>"),  # noqa: UP045  users write both
        (dict[str, list[float]], "map<string,array<double>>"),
        (Union[int, str], None),  # noqa: UP007  as above
        (list, None), (list[object], None), (dict[str, object], None), (object, None),
    ],
)  # fmt: skip
def test_a_type_hint_says_the_type(hint: Any, ddl: str | None) -> None:
    assert type_of_hint(hint) == ddl


@pytest.mark.parametrize(
    ("old", "new", "is_wider"),
    [
        ("bigint", "bigint", True),
        ("int", "bigint", True),
        ("bigint", "int", False),
        ("int", "double", True),
        ("bigint", "double", False),
        ("float", "double", True),
        ("double", "float", False),
        ("bigint", "decimal(19,0)", True),
        ("bigint", "decimal(20,2)", False),
        ("decimal(10,2)", "decimal(12,2)", True),
        ("decimal(10,2)", "decimal(12,5)", False),
        ("string", "binary", False),
        ("string", "decimal(38,0)", False),
        ("array<int>", "array<bigint>", True),
        ("array<int>", "struct<a:int>", False),
        ("map<string,int>", "map<string,bigint>", False),
        ("struct<a:int>", "struct<a:bigint,b:string>", True),
        ("struct<a:int,b:string>", "struct<a:int>", False),
    ],
)
def test_a_wider_type_holds_each_value_of_the_narrower_one(old: str, new: str, is_wider: bool) -> None:
    assert widens(old, new) is is_wider


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
