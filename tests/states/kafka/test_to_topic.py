"""ToTopic: which fields a record is made of, and how values become bytes. No broker is asked."""

import io
import json
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from states.kafka import Avro, ToTopic
from states.kafka.topic_sink import TopicRecord
from trident import Fields, TridentTuple
from trident.errors import ConfigError, CorruptValueError

FIELDS = [{"name": "account", "type": "string"}, {"name": "cents", "type": "long"}]
Headers = list[tuple[str, bytes | None]]
SCHEMA = json.dumps({"type": "record", "name": "total", "fields": FIELDS})


def record(
    key: bytes | None, value: bytes | None, partition: int = -1, ms: int = 0, headers: Headers | None = None
) -> TopicRecord:
    return key, value, partition, ms, headers


class Written:
    """Takes the place of a sink."""

    def __init__(self) -> None:
        self.records: list[TopicRecord] = []

    def write(self, records: Iterable[TopicRecord]) -> None:
        self.records += records


def written(updater: ToTopic, fields: str, *rows: tuple[Any, ...]) -> list[TopicRecord]:
    sink: Any = Written()
    updater.update_state(sink, [TridentTuple(Fields(fields), row) for row in rows], None)  # type: ignore[arg-type]
    assert isinstance(sink, Written)
    return sink.records


def test_fields_of_these_names_are_what_they_are_called() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    rows = ("k", b"\x00v", {"h": "1", "n": None}, 3, at), (None, None, None, None, None)
    assert written(ToTopic(), "key, value, headers, partition, timestamp", *rows) == [
        record(b"k", b"\x00v", 3, 1_767_323_045_678, [("h", b"1"), ("n", None)]),
        record(None, None),
    ]


def test_fields_may_have_other_names() -> None:
    updater = ToTopic(key="account", value="total", timestamp="ms", headers="marks", partition="at")
    row = ("a", 5, 7, [("h", b"1")], 0)
    assert written(updater, "account, total, ms, marks, at", row) == [record(b"a", b"5", 0, 7, [("h", b"1")])]


def test_headers_may_be_as_a_spout_reads_them() -> None:
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    (one,) = written(ToTopic(), "value, headers", ("v", headers))
    assert one[4] == [("a", b"1"), ("a", None)]


def test_without_a_field_for_the_value_it_is_an_object_of_the_other_fields() -> None:
    row = ("Gräz", 5, Decimal("1.50"), datetime(2026, 1, 2, tzinfo=UTC), None)
    (one,) = written(ToTopic(key="account"), "account, count, total, at, note", row)
    assert one[0] == "Gräz".encode()
    assert one[1] == b'{"count":5,"total":"1.50","at":"2026-01-02T00:00:00+00:00","note":null}'


@pytest.mark.parametrize(
    ("encode", "value", "expected"),
    [
        ("auto", "ä", "ä".encode()),
        ("auto", b"\xff", b"\xff"),
        ("auto", [1, None], b"[1,null]"),
        ("json", "ä", '"ä"'.encode()),
        ("json", None, None),
        (lambda value: f"<{value}>", 5, b"<5>"),
        (lambda value: None, 5, None),
    ],
)
def test_a_value_is_encoded(encode: Any, value: Any, expected: bytes | None) -> None:
    assert written(ToTopic(encode=encode), "value", (value,)) == [record(None, expected)]


def test_keys_have_an_encoding_of_their_own() -> None:
    (one,) = written(ToTopic(encode_key="json"), "key, value", ("k", "v"))
    assert (one[0], one[1]) == (b'"k"', b"v")


@pytest.mark.parametrize(("schema_id", "head"), [(None, b""), (7, b"\x00\x00\x00\x00\x07")])
def test_a_value_is_encoded_as_avro(schema_id: int | None, head: bytes) -> None:
    row = ("a", 5)
    (one,) = written(ToTopic(encode=Avro(SCHEMA, schema_id=schema_id)), "account, cents", row)
    assert one[1] is not None
    assert one[1].startswith(head)
    read = fastavro.schemaless_reader(io.BytesIO(one[1][len(head) :]), fastavro.parse_schema(json.loads(SCHEMA)), None)
    assert read == {"account": "a", "cents": 5}
    assert written(ToTopic(encode=Avro(SCHEMA)), "value", (None,)) == [record(None, None)]


def test_a_field_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="key='account' of ToTopic: the tuples have the fields key, value"):
        written(ToTopic(key="account"), "key, value", ("k", "v"))


def test_wrong_encodings_are_refused_where_they_are_given() -> None:
    said = r"encode='xml' of ToTopic: give 'auto', 'json', Avro\(schema\) or a function"
    with pytest.raises(ConfigError, match=said):
        ToTopic(encode="xml")
    with pytest.raises(ConfigError, match="encode_key=None of ToTopic"):
        ToTopic(encode_key=None)  # type: ignore[arg-type]


def test_a_function_that_returns_neither_bytes_nor_text_is_named() -> None:
    with pytest.raises(CorruptValueError, match="encode the value of a record: the function returned a int, not bytes"):
        written(ToTopic(encode=lambda value: 5), "value", ("v",))  # type: ignore[arg-type,return-value]


def test_what_json_does_not_have_is_named() -> None:
    for value, why in (
        (b"\xff", "it has bytes"),
        (float("nan"), "not JSON compliant"),
        ({date(2026, 1, 2): 1}, "keys must be"),
    ):
        said = rf"encode the value of a record: {re.escape(repr({'a': value}))} has no form in JSON \(.*{why}.*give encode="
        with pytest.raises(CorruptValueError, match=said):
            written(ToTopic(), "a", (value,))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timestamp", datetime(1970, 1, 1, tzinfo=UTC)),
        ("timestamp", datetime(1, 1, 1, tzinfo=UTC)),
        *[("timestamp", one) for one in (0, -1, 1.5, "7", float("nan"), 1 << 63)],
        *[("partition", one) for one in (-1, -7, 1.5, "7", float("inf"))],
    ],
)
def test_what_would_be_another_time_or_partition_is_refused(field: str, value: Any) -> None:
    with pytest.raises(CorruptValueError, match=re.escape(f"the {field} of a record is {value!r}: give a")):
        written(ToTopic(), f"value, {field}", ("v", value))
