"""What becomes of the values of records: text, JSON, Avro and functions; and of values that are none."""

import datetime
import decimal
import io
import json
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spouts.kafka import Avro, ByColumns, ByRecord, Json, OpaqueTridentKafkaSpout
from spouts.kafka.options import COLUMNS
from spouts.kafka.record_tables import RecordTables
from spouts.kafka.value_formats import AvroRecords, BadValue, Format, KafkaRecord, Plain, format_of
from spouts.messages import decode_all
from tests.harness import kafka_topics as written
from tests.harness.kafka_topics import Topics
from tests.harness.topology_runs import keep, start
from tests.spouts.kafka.kafka_batches import batches
from trident import TridentTopology
from trident.arrow import arrow_type
from trident.errors import ConfigError, SpoutError
from trident.run.dead_letters import DeadLetters

ACCOUNTS = Json("account: string, amount: bigint")
SCHEMA = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {"name": "account", "type": "string"},
        {"name": "amount", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "place", "type": {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "int"}]}},
    ],
}


def columns(format_: Format, *values: bytes | None, bad_is_null: bool = False) -> list[list[Any]]:
    return [one.to_pylist() for one in format_.columns(pa.array(values, pa.binary()), bad_is_null)]


def encoded(record: dict[str, Any], schema: dict[str, Any] = SCHEMA) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, schema, record)
    return data.getvalue()


def test_json_becomes_the_declared_fields() -> None:
    found = columns(ACCOUNTS, b'{"amount": 5, "account": "a", "more": [1]}', None, b'{\n "amount": 6\n}', b"{}")
    assert found == [["a", None, None, None], [5, None, 6, None]]


def test_json_has_the_types_that_spark_has() -> None:
    declared = Json("t: timestamp, d: decimal(9,2), l: array<int>, s: struct<x: int>, b: boolean, f: double")
    value = b'{"t": "2024-01-02T03:04:05Z", "d": "1.20", "l": [1, 2], "s": {"x": 3}, "b": true, "f": 1}'
    at = datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert columns(declared, value) == [[at], [decimal.Decimal("1.20")], [[1, 2]], [{"x": 3}], [True], [1.0]]


@pytest.mark.parametrize(
    "bad",
    [
        b"", b"5", b"{", b"[]", b'{"amount": "x"}', b'{"amount": 1.5}', b'{"amount": 1}{"amount": 2}',
        b'{"amount": 1}\n{"amount": 2}', b'{"account": "\xff"}', b'{"account": "\n"}', b'{},"n":2', b'{}},{"v":{}',
        b'{"amount": 1},"more":2', b'{"amount": 1},"more":{}', b"null",
    ],
)  # fmt: skip
def test_a_value_that_is_no_json_is_found_wherever_it_is(bad: bytes) -> None:
    good = b'{"amount": 1}'
    for at in range(4):
        values = [good] * 4
        values[at] = bad
        with pytest.raises(BadValue) as error:
            columns(ACCOUNTS, *values)
        assert error.value.at == at
        assert error.value.why


@pytest.mark.parametrize("bad", [b'{"f": 1e-50}', b'{"f": 1e50}', b'{"d": 1e-400}', b'{"b": "aGk"}'])
def test_numbers_beyond_their_type_and_bytes_that_are_not_base64_are_not_json(bad: bytes) -> None:
    declared = Json("f: float, d: double, b: binary")
    good = b'{"f": 0e-99, "d": 0, "b": "aGk="}'
    assert columns(declared, good, bad, bad_is_null=True) == [[0.0, None], [0.0, None], [b"hi", None]]


def test_halves_of_json_in_two_records_are_not_put_together() -> None:
    found = columns(ACCOUNTS, b'{"amount":', b"1}", b'{"amount": 2}{"amount": 3}', b'{"amount": 4}', bad_is_null=True)
    assert found[1] == [None, None, None, 4]


def test_text_must_be_utf_8() -> None:
    assert columns(Plain("string"), "é".encode(), None) == [["é", None]]
    with pytest.raises(BadValue) as error:
        columns(Plain("string"), b"a", b"\xff", b"c")
    assert error.value.at == 1
    assert columns(Plain("string"), b"a", b"\xff", None, bad_is_null=True) == [["a", None, None]]


def test_avro_becomes_the_fields_of_its_schema() -> None:
    record = {
        "account": "a", "amount": decimal.Decimal("1.50"), "at": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC),
        "tags": ["x"], "place": {"x": 1},
    }  # fmt: skip
    avro = AvroRecords(Avro(json.dumps(SCHEMA)))
    assert list(map(str, avro.fields.types)) == [
        "string", "decimal(9,2)", "timestamp", "array<string>", "struct<x:int>",
    ]  # fmt: skip
    found = columns(avro, encoded(record), None, encoded({**record, "amount": None}))
    assert [one[0] for one in found] == list(record.values())
    assert [one[1] for one in found] == [None] * 5
    assert found[1][2] is None


@pytest.mark.parametrize(
    ("kind", "logical", "given", "type_", "read"),
    [
        ("string", "uuid", uuid.UUID(int=5), "string", "00000000-0000-0000-0000-000000000005"),
        ("int", "time-millis", datetime.time(0, 0, 1), "int", 1000),
        ("long", "time-micros", datetime.time(0, 0, 1), "bigint", 1_000_000),
        ("int", "date", datetime.date(2024, 1, 2), "date", datetime.date(2024, 1, 2)),
        ("long", "date", 5, "bigint", 5),
        ("string", "date", "x", "string", "x"),
    ],
)
def test_a_logical_type_of_avro_is_what_spark_reads(kind: str, logical: str, given: Any, type_: str, read: Any) -> None:
    one = {"type": kind, "logicalType": logical}
    fields = [{"name": "x", "type": ["null", one]}, {"name": "many", "type": {"type": "array", "items": one}}]
    schema = {"type": "record", "name": "X", "fields": fields}
    avro = AvroRecords(Avro(schema))
    assert list(map(str, avro.fields.types)) == [type_, f"array<{type_}>"]
    assert columns(avro, encoded({"x": given, "many": [given]}, schema)) == [[read], [[read]]]
    registered = AvroRecords(Avro(schema, lambda number: json.dumps(schema)))
    assert columns(registered, b"\0\0\0\0\1" + encoded({"x": None, "many": [given]}, schema)) == [[None], [[read]]]


MONEY = {"type": "record", "name": "Money", "fields": [{"name": "n", "type": "long"}]}
CENTS = {"type": "fixed", "name": "Cents", "size": 4, "logicalType": "decimal", "precision": 5, "scale": 2}


@pytest.mark.parametrize("space", ["", "shop", "of.shop"])
@pytest.mark.parametrize(
    ("named", "value", "type_"),
    [
        (MONEY, {"n": 1}, "struct<n:bigint>"),
        ({"type": "enum", "name": "Colour", "symbols": ["RED"]}, "RED", "string"),
        (CENTS, decimal.Decimal("1.25"), "decimal(5,2)"),
        ({**MONEY, "namespace": "bank"}, {"n": 2}, "struct<n:bigint>"),
    ],
)
def test_a_type_of_avro_is_known_by_its_name(named: Any, value: Any, type_: str, space: str) -> None:
    name = ".".join(filter(None, [named.get("namespace"), named["name"]]))
    fields = [
        {"name": "a", "type": named},
        {"name": "b", "type": ["null", name]},
        {"name": "c", "type": {"type": "map", "values": name}},
    ]
    schema = {"type": "record", "name": "X", "fields": fields, **({"namespace": space} if space else {})}
    avro = AvroRecords(Avro(schema))
    assert list(map(str, avro.fields.types)) == [type_, type_, f"map<string,{type_}>"]
    assert columns(avro, encoded({"a": value, "b": value, "c": {"k": value}}, schema)) == [
        [value],
        [value],
        [[("k", value)]],
    ]


@pytest.mark.parametrize(
    ("type_", "default", "value"),
    [
        ("bytes", "\u00ff", b"\xff"),
        (["bytes", "null"], "a", b"a"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            "\u0004\u00d2",
            decimal.Decimal("12.34"),
        ),
        (CENTS, "\u0000\u0000\u0000\u0001", decimal.Decimal("0.01")),
        ({"type": "int", "logicalType": "date"}, 1, datetime.date(1970, 1, 2)),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            1000,
            datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC),
        ),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, 1, datetime.datetime(1970, 1, 1, 0, 0, 0, 1)),
        ({"type": "array", "items": "bytes"}, ["a"], [b"a"]),
        ({"type": "record", "name": "In", "fields": [{"name": "b", "type": "bytes"}]}, {"b": "a"}, {"b": b"a"}),
        (["null", "string"], None, None),
    ],
)
def test_a_default_of_avro_is_a_value_of_its_type(type_: Any, default: Any, value: Any) -> None:
    old = {"type": "record", "name": "X", "fields": [{"name": "n", "type": "int"}]}
    field = {"name": "v", "type": type_, "default": default}
    avro = AvroRecords(Avro({**old, "fields": [*old["fields"], field]}, lambda number: json.dumps(old)))
    assert columns(avro, b"\0\0\0\0\1" + encoded({"n": 7}, old)) == [[7], [value]]


def test_a_type_of_avro_within_itself_is_refused() -> None:
    fields = [{"name": "n", "type": "long"}, {"name": "next", "type": ["null", "Link"]}]
    for schema in (
        {"type": "record", "name": "Link", "fields": fields},
        {
            "type": "record",
            "name": "X",
            "namespace": "a",
            "fields": [{"name": "x", "type": {"type": "record", "name": "Link", "fields": fields}}],
        },
    ):
        with pytest.raises(
            ConfigError, match="'Link' contains itself, which no Spark type does; decode it with ByRecord"
        ):
            format_of(Avro(schema))


def test_avro_of_a_registry_is_read_with_the_schema_that_it_was_written_with() -> None:
    asked = []
    narrow = {"type": "record", "name": "X", "fields": [{"name": "x", "type": "int"}]}
    wide = {
        "type": "record",
        "name": "X",
        "fields": [{"name": "x", "type": "long"}, {"name": "y", "type": "string", "default": "-"}],
    }

    def registry(number: int) -> str:
        asked.append(number)
        return json.dumps({1: narrow, 2: wide}[number])

    def framed(number: int, record: dict[str, Any], schema: dict[str, Any]) -> bytes:
        return b"\0" + number.to_bytes(4, "big") + encoded(record, schema)

    avro = AvroRecords(Avro(wide, registry))
    old, new = framed(1, {"x": 1}, narrow), framed(2, {"x": 2, "y": "b"}, wide)
    assert columns(avro, old, new, old, None) == [[1, 2, 1, None], ["-", "b", "-", None]]
    assert asked == [1, 2]
    with pytest.raises(SpoutError, match=r"registry\(3\) gave no schema: KeyError: 3"):
        columns(avro, framed(3, {"x": 1}, narrow), bad_is_null=True)  # the registry may be away, and the value good
    with pytest.raises(BadValue, match="does not begin with the number of a schema"):
        columns(avro, encoded({"x": 2, "y": "b"}, wide))


def test_a_value_with_another_schema_is_no_avro() -> None:
    for bad in (
        b"",
        b"\x02",
        encoded({"x": 1}, {"type": "record", "name": "X", "fields": [{"name": "x", "type": "int"}]}),
    ):
        with pytest.raises(BadValue):
            columns(AvroRecords(Avro(SCHEMA)), bad)
    tail = AvroRecords(Avro({"type": "record", "name": "X", "fields": [{"name": "x", "type": "int"}]}))
    with pytest.raises(BadValue, match="ends at byte 1 of 2"):
        columns(tail, b"\x02\x02")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ('"string"', "must be a record|not the JSON"),
        ("{", "not the JSON of a schema"),
        ({"type": "record", "fields": [{"name": "x", "type": ["int", "string"]}]}, "no Spark type"),
        (
            {
                "type": "record",
                "fields": [{"name": "x", "type": {"type": "bytes", "logicalType": "decimal", "precision": 39}}],
            },
            "a decimal of 39 digits has no Spark type",
        ),
    ],
)
def test_a_schema_that_makes_no_fields_is_refused(schema: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        format_of(Avro(schema))


def test_a_field_without_a_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="'amount' needs a type"):
        Json("account: string, amount")


@pytest.mark.quick
def test_what_a_function_gives_that_is_no_row_of_its_fields_is_found_by_its_record() -> None:
    given: list[Any] = [(1, "a"), (1,), "ab", (2, 3), (), (1 << 70, "a"), None, {"n": 1, "s": "a"}]
    by_record = ByRecord("n: bigint, s: string", lambda record: given[record.offset])
    types = {name: arrow_type(type_) for name, type_ in COLUMNS.items()}
    records = pa.table({name: pa.array([None] * len(given), types[name]) for name in KafkaRecord._fields})
    records = records.set_column(4, "offset", pa.array(range(len(given)), pa.int64()))
    wrong, places, rows = dict[int, str](), list(range(len(given))), list[Any]()
    while not rows:  # as the emitter does: what is bad is taken out, and the rest tried again
        try:
            rows = by_record.translate(records.take(places)).to_pylist()
        except BadValue as bad:
            wrong |= {places[at]: why for at, why in bad.rows.items()}
            places = [place for place in places if place not in wrong]
    assert (sorted(wrong), rows) == ([1, 2, 3, 4, 5, 7], [{"n": 1, "s": "a"}])
    assert all("ByRecord" in why for why in wrong.values())
    tables = RecordTables(OpaqueTridentKafkaSpout("h:1", "t", value=by_record)._options)
    messages = [SimpleNamespace(**{name: lambda: None for name in COLUMNS}) for _ in given]
    for at, message in enumerate(messages):
        vars(message).update(offset=lambda at=at: at, timestamp=lambda: (0, 0))
    found: list[Any] = decode_all(messages, tables.rows)  # type: ignore[arg-type]
    assert [at for at, (_, trouble) in enumerate(found) if trouble] == [1, 2, 3, 4, 5, 7]
    assert [(values, trouble) for values, trouble in found if not trouble] == [((1, "a"), None), (None, None)]


GIVEN: dict[str, list[Any]] = {
    "n: bigint, s: string": [
        (1, "a"),
        [2, "\u00e4"],
        (None, None),
        (2**63 - 1, "\ud800"),
        (1 << 63, "a"),
        (True, "b"),
        (1.0, "c"),
    ],
    "n: int, b: binary": [(1 << 31, b""), (-(1 << 31), b"x"), (1, bytearray(b"y"))],
    "x: double, is: boolean": [(1, True), (0.5, 1), (float("inf"), None)],
    "t: timestamp": [
        (datetime.datetime(2024, 1, 1, tzinfo=zone),) for zone in (None, datetime.UTC, datetime.timezone.max)
    ],
    "l: array<int>": [([1, None],), ((2,),)],
}


@pytest.mark.quick
@pytest.mark.parametrize("case", ["fields", "text", *GIVEN])
def test_messages_have_the_values_that_batches_have(case: str) -> None:
    given = GIVEN.get(case, [b"", b"\xf0\x9f\x98\x80", b"\xed\xa0\x80", b"\xc0\x80", None])
    read: Any = (
        ByRecord(case, lambda record: given[record.offset]) if case in GIVEN else case if case == "text" else "bytes"
    )
    form: Any = {"fields": ",".join(COLUMNS), "key": read} if case not in GIVEN else {}
    tables = RecordTables(OpaqueTridentKafkaSpout("h:1", "t", value=read, **form)._options)
    for at, value in enumerate([None] * len(given) if case in GIVEN else given):
        had = {
            "value": value, "key": value, "timestamp": (at % 2, 10**12 + at), "partition": 1, "offset": at, "topic": "t",
            "headers": [("a", b"1"), ("b", None)][:at],
        }  # fmt: skip
        message: Any = SimpleNamespace(**{name: lambda it=it: it for name, it in had.items()})
        try:
            rows = tables.tuples(pa.Table.from_batches([tables.of([message])])).to_pylist()
        except BadValue:
            assert decode_all([message], tables.rows)[0][1]
        else:
            (row,) = tables.rows([message])
            assert [(type(each), each) for each in row or ()] == [(type(each), each) for each in rows[0].values()]


@pytest.mark.quick
def test_a_map_of_avro_is_a_dict_in_a_message() -> None:
    schema: Any = {"type": "record", "name": "r", "fields": [{"name": "m", "type": {"type": "map", "values": "long"}}]}
    tables = RecordTables(OpaqueTridentKafkaSpout("h:1", "t", value=Avro(schema), fields="value")._options)
    message: Any = SimpleNamespace(value=lambda: encoded({"m": {"a": 1}}, schema), offset=lambda: 0)
    assert tables.rows([message]) == [({"a": 1},)]


def halved(record: KafkaRecord) -> tuple[str, int] | None:
    number = int(record.value or b"0")
    return None if number % 2 else (f"{record.topic[:5]}/{record.offset}", number // 2)


def lengths(table: pa.Table) -> pa.Table:
    return pa.table({"bytes": pc.binary_length(table["value"]).cast(pa.int64()), "at": table["offset"]})


def test_a_function_of_each_record_says_what_is_emitted(kafka_topics: Topics) -> None:
    topic = kafka_topics.filled([b"%d" % n for n in range(5)])
    by_record = ByRecord("where: string, half: bigint", halved)
    with batches(OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, value=by_record)) as made:
        assert made.rest() == [("topic/0", 0), ("topic/2", 1), ("topic/4", 2)]
    with batches(
        OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, value=ByColumns("bytes: bigint, at: bigint", lengths))
    ) as made:
        assert made.rest() == [(1, n) for n in range(5)]
    kafka_topics.produce(topic, [b"no number"])
    with (
        batches(OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, value=by_record)) as made,
        pytest.raises(SpoutError, match=rf"offset 5 in partition 0 of topic '{topic}'.*ByRecord raised ValueError"),
    ):
        made.rest()


def test_a_bad_value_is_named_by_its_offset_or_becomes_null(kafka_topics: Topics) -> None:
    topic = kafka_topics.create(2)
    good = [written.Record(b'{"account": "a", "amount": 1}', partition=n % 2) for n in range(100)]
    kafka_topics.produce(topic, [*good, written.Record(b"{", partition=1), *good, written.Record(None)])
    spout = OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, value=ACCOUNTS)
    with batches(spout) as made, pytest.raises(SpoutError) as error:
        made.rest()
    assert str(error.value) == (
        f"offset 50 in partition 1 of topic '{topic}': its value is not JSON of the declared fields: "
        'Missing a name for object member; on_bad="null" would read it as None'
    )
    lenient = OpaqueTridentKafkaSpout(
        kafka_topics.bootstrap, topic, value=ACCOUNTS, fields="offset, value", on_bad="null"
    )
    with batches(lenient) as made:
        rows = made.rest()
    assert len(rows) == 202
    assert sorted(row for row in rows if row[1] is None) == [(50, None, None), (100, None, None)]


@pytest.mark.parametrize("ms", [1_700_000_000_000_000, 1_700_000_000_000_000_000], ids=["microseconds", "nanoseconds"])
def test_a_timestamp_that_no_year_has_is_named_by_its_offset_or_becomes_null(kafka_topics: Topics, ms: int) -> None:
    topic = kafka_topics.filled(
        [written.Record(b"v", timestamp_ms=at) for at in (5000, ms, 6000)], message_timestamp_after_max_ms=2**63 - 1
    )
    spout = OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, fields="offset, timestamp")
    with batches(spout) as made, pytest.raises(SpoutError) as error:
        made.rest()
    assert str(error.value).startswith(
        f"offset 1 in partition 0 of topic '{topic}': its timestamp is {ms} ms since 1970, "
    )
    assert str(error.value).endswith('on_bad="null" would read it as None')
    lenient = OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, fields="offset, timestamp", on_bad="null")
    with batches(lenient) as made:
        assert [(at, time and time.timestamp()) for at, time in made.rest()] == [(0, 5.0), (1, None), (2, 6.0)]


FAR = f"timestamp is {10**18} ms"
NONE = "not JSON of the declared fields: it is not an object"
UNREADABLE: dict[str, tuple[dict[str, Any], dict[int, str]]] = {
    "timestamp": ({"fields": "offset, timestamp"}, {1: FAR, 4: FAR}),
    "JSON": ({"fields": "offset, value", "value": Json("n: bigint")}, {2: NONE, 5: NONE}),
    "key": ({"fields": "offset, key", "key": "text"}, {3: "key is not text", 5: "key is not text"}),
    "two columns": (
        {"fields": "offset, key, value", "key": "text", "value": Json("n: bigint")},
        {2: NONE, 3: "key is not text", 5: "key is not text"},
    ),
    "ByRecord": (
        {
            "value": ByRecord(
                "offset: bigint, n: bigint", lambda record: (record.offset, json.loads(record.value or b"")["n"])
            )
        },
        {1: FAR, 2: "ByRecord raised JSONDecodeError", 4: FAR, 5: "ByRecord raised JSONDecodeError"},
    ),
    "ByRecord gives": (
        {"value": ByRecord("offset: bigint", lambda record: (record.offset, 1)[: 2 if record.value == b"x" else 1])},
        {1: FAR, 2: "a row has 2 values", 4: FAR, 5: "a row has 2 values"},
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_records_that_cannot_be_read_are_dead_letters(case: str, kafka_topics: Topics, tmp_path: Path) -> None:
    options, wrong = UNREADABLE[case]
    topic = kafka_topics.create(message_timestamp_after_max_ms=2**63 - 1)
    values = [b"x" if at in (2, 5) else b'{"n": 1}' for at in range(7)]
    times = [10**18 if at in (1, 4) else 5000 for at in range(7)]
    keys = [b"\xff" if at in (3, 5) else b"k" for at in range(7)]
    kafka_topics.produce(topic, list(map(written.Record, values, keys, [0] * 7, [()] * 7, times)))
    topology = TridentTopology("t")
    spout = OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, **options)
    kept = keep(topology.new_stream("s", spout).project("offset"))
    letters: dict[str, Any] = {
        "on_poison": "dead_letter",
        "max_batch_attempts": 2,
        "dead_letter_dir": str(tmp_path / "letters"),
    }
    with start(topology, "in_process", **letters, log_dir=str(tmp_path / "log")) as running:
        running.process_all_available()
        found = DeadLetters(running.config.dead_letter_folder("t")).all(running.log_state)
    assert sorted(kept.rows) == [(at,) for at in range(7) if at not in wrong]
    said = {letter.left_out.values["offset"]: letter.failure.cause for letter in found}
    assert sorted(said) == sorted(wrong)
    for at, why in wrong.items():
        assert said[at].startswith(f"SpoutError: offset {at} in partition 0 of topic '{topic}': ")
        assert why in said[at]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b'{"amount": "12"}', "amount is of type string, and not number"),
        (b'{"at": {"town": 3}}', "at.town is of type number, and not string"),
        (b"[1]", "it is not an object: an object begins with {"),
        (b'{"amount": 1.5}', "Failed to convert JSON to int64, couldn't parse:1.5"),
        (b'{"amount": tw}', "Invalid value"),
        (b'{"price": 1e5}', "column 'price': a number has more digits than decimal128(6, 2)"),
        (b'{"amount": 1},"more":2', "something follows the object"),
        (b" ", "it is empty"),
    ],
)
def test_json_that_is_not_as_declared_is_told_in_the_words_of_the_value(value: bytes, why: str) -> None:
    with pytest.raises(BadValue) as error:
        Json("amount: bigint, at: struct<town: string>, price: decimal(6,2)").columns(
            pa.array([b"{}", value]), bad_is_null=False
        )
    assert (error.value.at, error.value.why) == (
        1, f'its value is not JSON of the declared fields: {why}; on_bad="null" would read it as None'
    )  # fmt: skip
