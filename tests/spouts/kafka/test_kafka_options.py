"""Options that make no sense are refused when the spout is made; secrets are never shown."""

import datetime
import pickle
import re
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from spouts.kafka import ByColumns, KafkaSpout, OpaqueTridentKafkaSpout, range_reader
from spouts.kafka.clients import OffsetBounds, Spot
from spouts.kafka.positions import KafkaPositions, OffsetRange
from spouts.kafka.range_coordinator import definition_of, parts_of, ranges_of
from spouts.kafka.record_tables import RecordTables
from trident.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topics": []}, "give the name of a topic"),
        ({"topics": ""}, "give the name of a topic"),
        ({"topics": None}, "give the name of a topic"),
        ({"topics": {"t": []}}, "name at least one partition"),
        ({"topics": {"t": 0}}, "name at least one partition"),
        ({"topics": {"t": [0, "1"]}}, "by its number"),
        ({"topics": {"t": [-1]}}, "by its number"),
        ({"group_id": "", "first_poll": "committed"}, "group_id='': give the name"),
        ({"bootstrap_servers": " "}, "host:port"),
        (
            {"value": "json"},
            "value='json' of .*Spout: give 'bytes', 'text', a Json, an Avro, a ByRecord or a ByColumns",
        ),
        ({"key": "json"}, "key='json' of OpaqueTridentKafkaSpout: give 'bytes' or 'text'"),
        ({"fields": "value, colour"}, "each at most once, of value, key"),
        ({"fields": ""}, "each at most once"),
        ({"fields": "value, value"}, "each at most once"),
        ({"value": ByColumns("a: int", len), "fields": "value, key"}, "its function gets every column"),
        ({"first_poll": "LATEST"}, "give 'earliest', 'latest', 'committed' or a datetime"),
        ({"first_poll": datetime.datetime(2024, 1, 1)}, "needs a time zone"),
        ({"first_poll": "committed"}, "needs group_id"),
        ({"max_batch_records": 0}, "max_batch_records=0 of .*Spout: give a whole number of at least 1"),
        ({"max_batch_records": float("inf")}, "max_batch_records=inf of .*Spout: give a whole number of at least 1"),
        ({"max_batch_bytes": -1}, "max_batch_bytes=-1 of .*Spout: give a whole number of at least 1"),
        ({"max_batch_s": 0}, "give seconds above 0 or None"),
        ({"isolation": "serializable"}, "give 'read_committed' or 'read_uncommitted'"),
        ({"on_data_loss": "ignore"}, "give 'fail' or 'skip'"),
        ({"config": {"enable.auto.commit": True}}, "is set by group_id"),
        ({"config": {"auto.offset.reset": "latest"}}, "is set by first_poll"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        OpaqueTridentKafkaSpout(**{"bootstrap_servers": "h:1", "topics": "t", **options})


def test_the_flags_of_a_pattern_count() -> None:
    topics = OpaqueTridentKafkaSpout("h:1", re.compile("orders-.*", re.IGNORECASE))._options.topics
    assert topics.hold("Orders-EU")


@pytest.mark.parametrize("kind", [OpaqueTridentKafkaSpout, KafkaSpout])
def test_secrets_are_not_shown(kind: Any) -> None:
    config = {"sasl.username": "me", "sasl.password": "hidden", "ssl.key.pem": "k"}
    shown = repr(kind("h:1", "t", group_id="g", config=config))
    assert "hidden" not in shown
    assert "'me'" not in shown
    assert "sasl.password" in shown


def test_a_spout_is_a_description_that_can_be_pickled() -> None:
    spout = OpaqueTridentKafkaSpout("h:1", re.compile("t.*"), fields="key, value", config={"client.id": "c"})
    assert repr(pickle.loads(pickle.dumps(spout))) == repr(spout)
    assert list(spout.get_output_fields()) == ["key", "value"]


def test_a_part_from_the_middle_of_a_range_begins_under_the_epoch_of_the_range() -> None:
    whole = OffsetRange(Spot("t", 0), "x", 10, 30, epoch=4, since=2)
    definition = definition_of([whole], 4 << 20)
    assert list(ranges_of(definition)) == [whole]
    (first,), (second,) = parts_of(definition, 2)
    assert (first, second) == (whole._replace(end=20), whole._replace(start=20, since=4))


@pytest.mark.parametrize(
    ("first", "ms"),
    [
        (datetime.datetime.fromtimestamp(1075523975, datetime.UTC).replace(microsecond=245_000), 1075523975245),
        (datetime.datetime(2024, 1, 1, microsecond=1, tzinfo=datetime.UTC), 1704067200001),
        (datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=datetime.UTC), 0),  # -1 is the end to a broker
        (datetime.datetime(1, 1, 1, tzinfo=datetime.UTC), 0),
    ],
)
def test_reading_begins_at_the_first_millisecond_that_is_not_before_first_poll(
    first: datetime.datetime, ms: int
) -> None:
    def at(spots: Any, asked: int) -> dict[Spot, int | None]:
        return dict.fromkeys(spots, asked)

    options = OpaqueTridentKafkaSpout("h:1", "t", first_poll=first)._options
    brokers: Any = SimpleNamespace(options=options, at=at)
    bounds = {Spot("t", 0): OffsetBounds(0, 10, 0)}
    assert KafkaPositions(brokers).choose_starts(list(bounds), bounds) == {Spot("t", 0): ms}


@pytest.mark.parametrize("ms", [8_589_934_592_123, 32_503_680_000_001, 253_402_300_799_999, -62_135_596_800_000])
def test_a_timestamp_of_a_single_record_is_exact_to_the_millisecond_in_every_year(ms: int) -> None:
    record: Any = SimpleNamespace(timestamp=lambda: (1, ms), offset=lambda: 0)
    (row,) = RecordTables(OpaqueTridentKafkaSpout("h:1", "t", fields="timestamp")._options).rows([record])
    assert row is not None
    (found,) = row
    assert (found - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(milliseconds=1) == ms
    assert found.microsecond % 1000 == 0


def test_readers_that_nobody_borrows_are_closed_and_a_batch_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, timer = Mock(), Mock()
    monkeypatch.setattr(range_reader, "RangeReader", Mock(return_value=reader))
    monkeypatch.setattr("threading.Timer", timer)
    pool, options = range_reader.ReaderPool(), OpaqueTridentKafkaSpout("h:1", "t")._options
    for _ in range(3):
        with pool.borrow(options):
            pass
    assert (timer.call_count, reader.close.called) == (1, False)
    _, sweep = timer.call_args.args
    for idle_s in (1000.0, 0.0):
        monkeypatch.setattr(range_reader, "_IDLE_S", idle_s)
        sweep()
    assert (timer.call_count, reader.close.call_count) == (2, 1)
