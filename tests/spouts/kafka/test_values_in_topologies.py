"""Whatever a record has can travel in a topology: every value of every type that a spout emits."""

from __future__ import annotations

import io
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro

from spouts import KafkaSpout
from spouts.kafka import Avro, Json
from tests.harness.kafka_topics import Record, Topics
from tests.spouts.messages.driving import LIMIT_S
from trident.storm import BaseRichBolt, LocalCluster, TopologyBuilder, Tuple

_SEEN: list[Any] = []


class _Sees(BaseRichBolt):
    def execute(self, tuple: Tuple) -> None:
        _SEEN.append(tuple.values)
        self.collector.ack(tuple)


def _seen(spout: KafkaSpout) -> Any:
    _SEEN.clear()
    builder = TopologyBuilder()
    builder.set_spout("records", spout)
    builder.set_bolt("sees", _Sees(), 2).fields_grouping("records", spout._fields.names[0])
    with LocalCluster() as cluster:
        cluster.submit_topology("values", None, builder.create_topology())
        deadline = time.monotonic() + LIMIT_S
        while not _SEEN:
            assert time.monotonic() < deadline
    return _SEEN[0]


def test_all_that_a_record_has(kafka_topics: Topics) -> None:
    topic = kafka_topics.create()
    kafka_topics.produce(topic, [Record(b"v", None, 0, (("h", b"1"), ("n", None)), 5000)])
    fields = "value, key, timestamp, partition, offset, topic, headers"
    found = _seen(KafkaSpout(kafka_topics.bootstrap, topic, group_id="g", fields=fields))
    headers = [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    assert found == (b"v", None, datetime.fromtimestamp(5, UTC), 0, 0, topic, headers)


def test_all_types_of_json(kafka_topics: Topics) -> None:
    topic = kafka_topics.create()
    text = b'{"s": "x", "b": true, "d": 1.5, "t": "2024-02-29T01:02:03Z", "m": "1.50", "a": [1, 2], "o": {"x": 1}}'
    kafka_topics.produce(topic, [text])
    declared = "s: string, b: boolean, d: double, t: timestamp, m: decimal(9,2), a: array<bigint>, o: struct<x:bigint>"
    found = _seen(KafkaSpout(kafka_topics.bootstrap, topic, group_id="g", value=Json(declared)))
    at = datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC)
    assert found == ("x", True, 1.5, at, Decimal("1.50"), [1, 2], {"x": 1})


def test_a_map_of_avro(kafka_topics: Topics) -> None:
    schema: Any = {"type": "record", "name": "r", "fields": [{"name": "m", "type": {"type": "map", "values": "long"}}]}
    data = io.BytesIO()
    fastavro.schemaless_writer(data, schema, {"m": {"a": 1}})
    topic = kafka_topics.create()
    kafka_topics.produce(topic, [data.getvalue()])
    spout = KafkaSpout(kafka_topics.bootstrap, topic, group_id="g", value=Avro(schema), fields="value")
    assert _seen(spout) == ({"a": 1},)
