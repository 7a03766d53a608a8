"""Each setting, of whatever class, takes what its type and bounds allow, and refuses anything else by a `ConfigError` alone."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import typing
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from spouts import (
    CsvFileSpout,
    DeltaSpout,
    FixedBatchSpout,
    JsonFileSpout,
    KafkaSpout,
    OpaqueTridentKafkaSpout,
    ParquetFileSpout,
    RateSpout,
    RedisStreamBolt,
    RedisStreamRichSpout,
    TextFileSpout,
    TransactionalRedisStreamSpout,
)
from spouts.files.line_spouts import FileSettings
from spouts.messages import RetryPolicy
from spouts.redis.stream_server import RedisServerOptions, RedisServerSettings
from states.cassandra import CassandraState
from states.delta import DeltaState
from states.memcached import MemcachedState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.house_figures import store_options
from trident import Config
from trident.errors import ConfigError, TridentError
from trident.setting_types import Settings, seconds, whole
from trident.storm import StormConfig

if typing.TYPE_CHECKING:
    from decimal import Decimal

GIVEN: dict[str, Any] = {"url": "redis://a", "bootstrap": "a:1", "topic": "t"}
CLASSES: list[type[Settings]] = [Config, StormConfig, *store_options().values(), RedisServerOptions, RetryPolicy]
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 1.5, -0.0, math.nan, math.inf, -math.inf, 1 << 62, 1 << 80, 10**400, "", "5", "hush", b"hush",
    Path("hush"), (), ("hush",), [], ["hush"], {}, {"a": 1}, {1: None}, object(), int, 2j,
]  # fmt: skip


def needed(declared: Any) -> dict[str, Any]:
    """Return values for the settings of a class that have no default."""
    given = {**GIVEN, "url": "postgresql://a"} if declared.__name__ == "PostgresOptions" else GIVEN
    must = [
        each.name
        for each in dataclasses.fields(declared)
        if each.default is each.default_factory is dataclasses.MISSING or each.default == ""
    ]
    return {name: given.get(name, name) for name in must}


@pytest.mark.parametrize("declared", CLASSES, ids=lambda one: one.__name__)
def test_an_odd_value_is_taken_or_refused_by_name(declared: type[Settings]) -> None:
    names = [
        each.name for each in dataclasses.fields(declared) if each.name != "serializer"
    ]  # checked by what it can do
    for name, value in itertools.product(names, ODD):
        refused, kept = "", None
        try:
            kept = getattr(declared(**{**needed(declared), name: value}), name)
        except ConfigError as error:
            refused = str(error)
        if refused:
            assert name in refused or "TLS" in refused or "user and password" in refused, (name, value, refused)
            assert "password" not in name or "hush" not in refused
        else:
            assert kept == value or (value == 0 and kept is None), (name, value, kept)
            assert type(value) is not bool or type(declared.__dataclass_fields__[name].default) is bool, (name, value)
            assert not isinstance(value, (int, float)) or -math.inf < value < 1 << 63, (name, value)


def test_options_by_name_are_those_of_the_class() -> None:
    names, types = (
        {each.name for each in dataclasses.fields(RedisServerOptions)},
        typing.get_type_hints(RedisServerOptions),
    )
    assert typing.get_type_hints(RedisServerSettings) == {name: types[name] for name in names - {"url"}}


@dataclasses.dataclass(frozen=True, repr=False)
class ForTypeCheckers(Settings):
    places: tuple[Any, ...] = ()
    price: Decimal | None = None
    rows: int = whole(1, 1)
    most: int | None = whole(None, 1)
    wait_s: float = seconds(1.0)


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"rows": None}, {"most": 0}, {"wait_s": math.nan}, {"wait_s": "1"}])
def test_bounds_hold_where_a_type_is_there_for_type_checkers_only(wrong: dict[str, Any]) -> None:
    assert ForTypeCheckers(price=1, most=None).price == 1  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}=.*: give "):
        ForTypeCheckers(**wrong)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"message_timeout_s": math.inf}, "message_timeout_s=inf: give seconds above 0, at most 1000000000"),
        ({"progress_kept": 1 << 80}, "give a whole number of at least 1, at most 9223372036854775807"),
        ({"poll_interval_ms": 10**13}, "give a whole number of at least 0, at most 1000000000000"),
        ({"spark_conf": '{"password": "hush"'}, "spark_conf: the text is no JSON object"),
        ({"history": "1" * 5000}, "history="),
        ({5: 1}, "unknown setting 5. Known are: "),
    ],
)
def test_what_is_too_large_or_unreadable_is_told_in_full(given: dict[Any, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Config.of(given)
    assert said in str(refused.value)
    assert "hush" not in str(refused.value)


SOURCES: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {
    TextFileSpout: (("books",), {}),
    CsvFileSpout: (("books", "a: int"), {}),
    JsonFileSpout: (("books", "a: int"), {}),
    ParquetFileSpout: (("books", "a: int"), {}),
    FixedBatchSpout: (("a: int",), {"max_batch_size": 1}),
    RateSpout: ((1,), {}),
    DeltaSpout: (("table", "a: int"), {}),
    TransactionalRedisStreamSpout: (("redis://h", "s", "a: int"), {}),
    RedisStreamRichSpout: (("redis://h", "s", "a: int"), {"group": "g"}),
    RedisStreamBolt: (("redis://h", "s", "a: int"), {}),
    OpaqueTridentKafkaSpout: (("h:1", "t"), {}),
    KafkaSpout: (("h:1", "t"), {"group_id": "g"}),
}
SWITCHES = ("recursive", "follow", "allow_empty", "tls", "tls_verify")
MORE: dict[Any, list[str]] = {
    TextFileSpout: [*FileSettings.__annotations__],
    RedisStreamBolt: [*RedisServerSettings.__annotations__],
}


@pytest.mark.parametrize("source", SOURCES, ids=lambda one: one.__name__)
def test_an_odd_argument_of_a_source_is_taken_or_refused_by_name(source: Any) -> None:
    positional, by_name = SOURCES[source]
    parameters = inspect.signature(source).parameters
    own = [
        each.name
        for each in parameters.values()
        if each.kind is each.KEYWORD_ONLY or each.name in ("max_batch_size", "bad_lines")
    ]
    for name, value in itertools.product([*own, *MORE.get(source, [])], ODD):
        is_switch = (
            name in ("header", "with_stream", *SWITCHES) or type(getattr(parameters.get(name), "default", None)) is bool
        )
        refused = ""
        try:
            source(*positional, **{**by_name, name: value})
        except (ValueError, TridentError) as error:
            refused = str(error)
        assert refused or not isinstance(value, (int, float)) or -math.inf < value < 1 << 63, (name, value)
        assert refused or type(value) is not bool or is_switch, (name, value)
        assert not refused or name in refused or "TLS" in refused or "as a field" in refused, (name, refused)
        assert "hush" not in refused or "password" not in name


@pytest.mark.parametrize(
    "state", [RedisState, PostgresState, CassandraState, MemcachedState, DeltaState], ids=lambda one: one.__name__
)
def test_an_odd_place_of_a_state_is_taken_or_refused_by_name(state: Any) -> None:
    for value in ODD:
        with suppress(ConfigError):
            assert state.opaque(value).store == state.__name__
            assert value is None or (value and isinstance(value, (str, Path, list, tuple))), value
    with pytest.raises(ConfigError, match="url=None of a Redis state: give text"):
        RedisState.opaque(None)  # as of a variable that is not set
    with pytest.raises(ConfigError, match="table='' of DeltaSpout"):
        DeltaSpout("")


@pytest.mark.parametrize("options", [{"null_values": "NA"}, {"timestamp_formats": "%Y"}, {"header": "ab"}])
def test_a_text_for_a_list_of_texts_is_refused_and_never_cut_into_letters(options: dict[str, Any]) -> None:
    ((name, text),) = options.items()
    with pytest.raises(ConfigError, match=f"{name}='{text}' of CsvFileSpout: give .*a list$"):
        CsvFileSpout("books", "a: int", **options)
