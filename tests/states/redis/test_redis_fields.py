"""A Redis state whose values are fields of hashes, and the bytes that go to the server and come back."""

import datetime as dt
import itertools
import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import hiredis
import numpy as np
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from spouts import FixedBatchSpout
from states.redis import RedisBackingMap, RedisOptions, RedisState
from states.redis.layout import NO_TEXT, PlainHashes, hashes_of
from states.redis.wire import Words, pack
from tests.harness.servers import Server
from tests.states.memory.test_memory_columns import SOME, TYPE, summed
from tests.states.redis.redis_states import Interrupted
from trident import TridentTopology, open_state
from trident.errors import BackendError, ConfigError, CorruptValueError, TopologyError
from trident.operations import Avg, Count, Last, Sum
from trident.state import CodecSerializer, JSONOpaqueSerializer, Key, OpaqueMap, OpaqueValue
from trident.state.encoding.codec import encode_keys
from trident.state.interfaces import StateConf
from trident.state.kinds import StateType
from trident.state.table import OpaqueTable
from trident.state.values import TransactionalValue
from trident.testing.backend.schedules import Log

OPTIONS = RedisOptions(url="redis://localhost", layout="fields")
ZERO = dt.datetime(1, 1, 2)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(exclude_categories=()) | st.sampled_from(":\\N"), max_size=6),
    "boolean": st.booleans(),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_subnormal=True),
    "decimal(20,4)": st.decimals(-(10**9), 10**9, allow_nan=False, places=4),
    "date": st.dates(),
    "timestamp": st.datetimes(min_value=ZERO, timezones=st.just(dt.UTC)).map(lambda one: one.replace(fold=0)),
    "timestamp_ntz": st.datetimes().map(lambda one: one.replace(fold=0)),
    "binary": st.binary(max_size=4),
}


def answer(rows: list[Sequence[bytes]]) -> list[list[bytes | None]]:
    """Return what the server would answer for hashes of these fields."""
    return [[None if text == NO_TEXT else text for text in row] for row in rows]


def hashes(keys: tuple[str, ...], value: str, kind: StateType = StateType.OPAQUE) -> PlainHashes:
    fields = tuple((f"k{at}", type_) for at, type_ in enumerate(keys))
    found = hashes_of(StateConf("t", "s", fields, value, value_field="v"), kind, OPTIONS)
    assert isinstance(found, PlainHashes), found
    return found


@given(types=st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3), data=st.data())
def test_no_two_keys_have_one_name_and_each_is_read_back(types: list[str], data: st.DataObject) -> None:
    form = hashes(tuple(types), "bigint")
    keys = data.draw(st.lists(st.tuples(*(st.none() | VALUES[type_] for type_ in types)), min_size=1, max_size=4))
    names = form.names(keys)
    read = form.keys(names)
    assert form.names(read) == names
    distinct = {repr(form.keys([name])) for name in names}
    assert len(distinct) == len(set(names))
    for key, back in zip(keys, read, strict=True):
        same = [one == other or (one != one and other != other) for one, other in zip(key, back, strict=True)]
        assert all(same), (key, back)
    assert not any(b":" + name == b":\\sentinels" for name in names)


@pytest.mark.parametrize("kind", [StateType.OPAQUE, StateType.TRANSACTIONAL, StateType.NON_TRANSACTIONAL])
@given(data=st.data())
def test_each_value_is_read_back(kind: StateType, data: st.DataObject) -> None:
    prices = "array<struct<price:decimal(20,4),many:array<decimal(20,4)>,n:bigint>>"
    type_ = data.draw(st.sampled_from([*VALUES, "array<bigint>", "struct<a:bigint,b:date>", prices]))
    one = {
        **VALUES,
        "array<bigint>": st.lists(st.none() | st.integers(-9, 9), max_size=2),
        "struct<a:bigint,b:date>": st.tuples(st.none() | st.integers(0, 9), st.none() | st.dates()).map(
            lambda one: {"a": one[0], "b": one[1]}
        ),
        prices: st.lists(
            st.none()
            | st.fixed_dictionaries(
                {
                    "price": st.none() | VALUES["decimal(20,4)"],
                    "many": st.none() | st.lists(st.none() | VALUES["decimal(20,4)"], max_size=2),
                    "n": st.integers(0, 9),
                }
            ).map(lambda one: {name: one[name] for name in ("price", "many", "n")}),
            max_size=2,
        ),
    }[type_]
    values = data.draw(st.lists(st.none() | one, min_size=1, max_size=3))
    form = hashes(("string",), type_, kind)
    made: dict[StateType, list[Any]] = {
        StateType.OPAQUE: [OpaqueValue(3, 7, before, now) for before, now in zip(values[::-1], values, strict=True)],
        StateType.TRANSACTIONAL: [TransactionalValue(3, now) for now in values],
        StateType.NON_TRANSACTIONAL: values,
    }
    stored = made[kind]
    keys = [(str(at),) for at in range(len(values))]
    assert repr(form.decode(keys, answer(form.encode(keys, stored)))) == repr(stored)
    common = form.common(stored)
    assert list(common) == [name for name in form.stored_fields if name in (b"_batch", b"_txid")]
    rest, at = form.encode(keys, stored, common), form.fields.index(next(iter(common)).decode()) if common else 0
    whole = [(*row[:at], *common.values(), *row[at:]) for row in rest]
    assert whole == form.encode(keys, stored)


@pytest.mark.parametrize(
    ("type_", "value", "written"),
    [
        ("array<double>", [math.nan, -math.inf, -0.0, None, 1.5], b'["nan", "-inf", -0.0, null, 1.5]'),
        ("array<struct<d:double,t:string>>", [{"d": math.inf, "t": "nan"}, None], b'[{"d": "inf", "t": "nan"}, null]'),
        ("array<struct<d:double,t:string>>", [{"d": 1.5, "t": '"nan"'}], b'[{"d": 1.5, "t": "\\"nan\\""}]'),
    ],
)
def test_what_is_written_as_json_is_json_and_comes_back(type_: str, value: Any, written: bytes) -> None:
    form = hashes(("string",), type_, StateType.NON_TRANSACTIONAL)
    (row,) = rows = form.encode([("a",)], [value])
    assert row[0] == written
    assert json.loads(row[0], parse_constant=pytest.fail)
    assert repr(form.decode([("a",)], answer(rows))) == repr([value])


@pytest.mark.parametrize(
    ("type_", "given", "stored"),
    [
        ("double", np.float64(0.1), 0.1),
        ("double", 1, 1.0),
        ("bigint", np.int64(7), 7),
        ("bigint", 2.0, 2),
        ("decimal(10,2)", 1, Decimal("1.00")),
        ("array<double>", [np.float64("nan"), np.float32(0.5), 1], [math.nan, 0.5, 1.0]),
        ("array<bigint>", (1, 2.0), [1, 2]),
        ("struct<a:double,b:string>", (np.float64(5), "z"), {"a": 5.0, "b": "z"}),
    ],
)
def test_what_user_code_gave_is_stored_as_its_declared_type(type_: str, given: Any, stored: Any) -> None:
    form = hashes(("string",), type_)
    rows = form.encode([("a",)], [OpaqueValue(2, 1, None, given)])
    (back,) = form.decode([("a",)], answer(rows))
    assert repr(back) == repr(OpaqueValue(2, 1, None, stored))


def test_a_struct_without_one_of_its_fields_is_refused_by_name() -> None:
    with pytest.raises(CorruptValueError, match=r"cannot write \{'a': 3.0\} .* the members \['b'\] are missing"):
        hashes(("string",), "struct<a:double,b:string>").encode([("a",)], [OpaqueValue(2, 1, None, {"a": 3.0})])


def test_decimals_are_texts_also_within_arrays() -> None:
    form = hashes(("string",), "array<decimal(10,2)>", StateType.NON_TRANSACTIONAL)
    assert form.encode([("a",)], [[Decimal("19.90"), None]]) == [(b'["19.90", null]',)]


def test_a_plain_client_reads_the_word_count(redis_server: Server, tmp_path: Path) -> None:
    url = f"redis://{redis_server.address}"
    topology = TridentTopology("plain")
    rows = [("the", 2), ("cow", 3), ("the", 6), (None, 1)]
    words = topology.new_stream("words", FixedBatchSpout("word: string, n: bigint", 2, *rows))
    of_words, of_sales = (RedisState.opaque(url, prefix=prefix, layout="fields") for prefix in ("words", "sales"))
    counts = words.group_by("word").persistent_aggregate(of_words, Count(), "count")
    sales = words.group_by("word").persistent_aggregate(of_sales, {"sum": Sum("n"), "mean": Avg("n")}, "sales")
    assert "stored as hashes words:<word> with the fields count, _batch, _before" in topology.explain()
    with topology.start(engine="in_process", log_dir=str(tmp_path / "log")) as running:
        running.process_all_available()
    with redis.Redis(port=redis_server.port, decode_responses=True) as client:
        assert client.hget("words:the", "count") == "2"
        assert client.hgetall("words:the") == {"count": "2", "_batch": "2/1048576", "_before": "1"}
        assert client.hget("words:\\N", "count") == "1"
        assert client.hmget("sales:the", "sum", "mean") == ["8", "4.0"]
    with open_state(topology, counts, log_dir=str(tmp_path / "log")) as reader:
        assert reader.multi_get(["the", "cow", None, "moon"]) == [2, 1, 1, None]
        assert sorted(map(repr, reader.get_tuples())) == ["('cow', 1)", "('the', 2)", "(None, 1)"]
    with open_state(topology, sales, log_dir=str(tmp_path / "log")) as reader:
        assert reader.multi_get(["the"])[0]["mean"] == 4.0


CONF = StateConf("plain", "fields", (("word", "string"),), "bigint", value_field="count")


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_server.port, decode_responses=True) as made:
        made.flushall()
        yield made


def opened(server: Server, conf: StateConf = CONF, **options: Any) -> Any:
    given_: Mapping[str, Any] = {"layout": "fields", **options}
    return RedisState.opaque(f"redis://{server.address}", **given_).factory.make_state(conf, 0, 1)


def test_a_null_leaves_no_field_of_the_value_before(redis_server: Server, client: redis.Redis) -> None:
    state, log = opened(redis_server), Log()
    for value in (3, None):
        txid = log.next()
        state.begin_commit(txid)
        state.multi_put([("the",)], [value])
        state.commit(txid)
        log.record()
    assert client.hgetall("plain/fields:the") == {"_batch": "2/1048576", "_before": "3"}
    assert state.multi_get([("the",)]) == [None]


def test_values_of_several_batches_are_put_at_once(redis_server: Server, client: redis.Redis) -> None:
    backing, keys = opened(redis_server).map_state.backing, [(f"w{at}",) for at in range(5)]
    several = [OpaqueValue(2 + at % 2, 7, None if at == 3 else at, at * 10 or None) for at in range(5)]
    for values in (several, [OpaqueValue(9, 8, 1, 2)] * 5, several):  # of one batch alone, it is sent once
        backing.multi_put(keys, values)
        assert backing.multi_get([*keys, ("none",)]) == [*values, None]
        backing._wire.servers.link(0)._come = None  # as with a redis-py that has hiredis elsewhere
        assert list(backing.multi_get_opaque([("none",), *keys])) == [None, *values]
    assert client.hgetall("plain/fields:w3") == {"_batch": "3/7", "count": "30"}


def test_what_another_program_wrote_is_named(redis_server: Server, client: redis.Redis) -> None:
    state = opened(redis_server)
    client.hset("plain/fields:new", mapping={"count": "5"})
    said = r"its hash has no _batch, so another program wrote it.*set _batch to 0/-1"
    with pytest.raises(CorruptValueError, match=said):
        state.multi_get([("new",)])
    client.hset("plain/fields:new", mapping={"_batch": "0/-1"})
    assert state.multi_get([("new",)]) == [5]
    client.hset("plain/fields:new", "_batch", "7")
    with pytest.raises(CorruptValueError, match="another program wrote its hash: b'7' in place of a batch and its att"):
        state.multi_get([("new",)])
    client.hset("plain/fields:new", mapping={"_batch": "0/-1", "count": "many"})
    with pytest.raises(CorruptValueError, match="another program wrote its hash: invalid literal"):
        state.multi_get([("old",), ("new",)])
    client.delete("plain/fields:new")
    client.set("plain/fields:new", "text")
    with pytest.raises(Exception, match="WRONGTYPE"):
        state.multi_get([("old",), ("new",), ("older",)])
    assert state.multi_get([("old",), ("older",)]) == [None, None]


def test_a_key_may_be_called_as_the_sentinels_of_the_other_layout(redis_server: Server, client: redis.Redis) -> None:
    keys, log = [("sentinels",), ("changes",), ("\\sentinels",)], Log()
    state = opened(redis_server)
    for total in (1, 2):
        state, txid = opened(redis_server, changes=9), log.next()
        state.begin_commit(txid)
        state.multi_put(keys, [total] * len(keys))
        state.commit(txid)
        log.record()
        assert opened(redis_server).multi_get(keys) == [total] * len(keys)
    assert sorted(state.get_tuples()) == sorted((*key, 2) for key in keys)
    client.delete("plain/fields:\\sentinels")  # its own are lost, which is no other layout
    assert opened(redis_server).read_sentinel() is None


@pytest.mark.parametrize(("written", "read"), [("fields", "strings"), ("strings", "fields")])
def test_a_state_in_another_layout_is_refused(
    redis_server: Server, client: redis.Redis, written: str, read: str
) -> None:
    state, txid = opened(redis_server, layout=written), Log().next()
    state.begin_commit(txid)
    state.multi_put([("the",)], [1])
    state.commit(txid)
    with pytest.raises(ConfigError, match=f"was written with layout='{written}'"):
        opened(redis_server, layout=read).read_sentinel()


def test_values_of_a_state_whose_prefix_begins_with_this_one_are_not_emptied(
    redis_server: Server, client: redis.Redis
) -> None:
    other = opened(redis_server, layout="strings", prefix="words:new")
    state = opened(redis_server, prefix="words")
    for one in (other, state):
        one.begin_commit(Log().next())
        one.multi_put([("the",)], [1])
        one.commit(Log().next())
    state.reset()
    assert other.multi_get([("the",)]) == [1]
    assert state.multi_get([("the",)]) == [None]


def test_what_has_no_plain_form_is_refused_by_name() -> None:
    cases: list[tuple[str | None, dict[str, Any], str]] = [
        ("map<string,int>", {}, "'v', of type map<string,int>, has no plain form there"),
        (None, {}, "its keys and values have no declared type"),
        ("bigint", {"serializer": "json"}, "it has a serializer"),
    ]
    for value, options, told in cases:
        conf = StateConf("t", "s", (("k", "string"),), value, value_field="v")
        said = f"layout='fields' of a Redis state: state 's' cannot have it: {told}. Give it"
        with pytest.raises(ConfigError, match=re.escape(said)):
            hashes_of(conf, StateType.OPAQUE, replace(OPTIONS, **options))
    strings = RedisOptions("redis://localhost", serializer="json")
    assert hashes_of(StateConf("t", "s"), StateType.OPAQUE, strings) is None


def test_a_layout_that_cannot_be_had_is_refused_where_the_state_is_declared() -> None:
    stream = TridentTopology("t").new_stream("s", FixedBatchSpout("k: string, m: map<string,int>", 1, ("a", None)))
    state = RedisState.opaque("redis://localhost", layout="fields")
    with pytest.raises(ConfigError, match="state 'last' cannot have it: 'last', of type map<string,int>, has no plain"):
        stream.group_by("k").persistent_aggregate(state, "m", Last(), "last")


def test_what_json_does_not_have_is_refused_where_the_state_is_declared() -> None:
    state, declared = RedisState.opaque("redis://localhost", serializer="json"), TridentTopology("t")
    types = {"at": "timestamp", "d": "decimal(5,2)", "m": "map<bigint,int>", "b": "array<struct<date:binary>>"}
    fields = ", ".join(f"{name}: {type_}" for name, type_ in types.items())
    rows = FixedBatchSpout(f"k: string, ok: struct<date:int,map:map<string,double>>, {fields}", 1, [None] * 6)
    by_key = declared.new_stream("s", rows).group_by("k")
    for name, lacking in {"at": "timestamp", "d": r"decimal\(5,2\)", "m": "map<bigint", "b": "binary"}.items():
        with pytest.raises(ConfigError, match=f"serializer='json' of state 'last', .*: JSON has no {lacking}. Leave"):
            by_key.persistent_aggregate(state, name, Last(), "last")
    said = "the window keeps bytes in state 'n-window', and serializer='json' has none"
    with pytest.raises(TopologyError, match=said):
        by_key.tumbling_window(2, state, Count(), "n")
    by_key.persistent_aggregate(state, "ok", Last(), "last")
    own = type("WithDates", (JSONOpaqueSerializer,), {})()  # which may write what JSON does not have
    by_key.persistent_aggregate(RedisState.opaque("redis://localhost", serializer=own), "at", Last(), "at")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"layout": "rows"}, "layout='rows' of a Redis state: give 'strings' or 'fields'"),
        ({"layout": "fields", "prefix": "a:b"}, "a ':' ends the prefix"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        RedisState.opaque("redis://localhost", **options)


_names = itertools.count()
NASTY = [b"", b"\r\n", b"$5\r\nhello\r\n", b"*1\r\n", b"-OOM\r\n", b"-MOVED 1 a:1\r\n", b"\x00\xff"]
LARGE = [b"x" * 1023, b"x" * 1024]
words = st.one_of(
    st.sampled_from([*NASTY, *LARGE]), st.binary(max_size=40), st.integers(-9, 10**20), st.text(max_size=9)
)


def pair(rng: random.Random) -> Any:
    """A value as streams have them: numbers, texts with line breaks, nothing, and now and then a large one."""
    numbers = [rng.randrange(-(2**40), 2**40), 3338, rng.random()]
    kinds = [None, *numbers, "", "\r\n$1\r\n", rng.randbytes(40), b"", ["a", (1, None)]]
    return rng.choice([*kinds, rng.randbytes(200_000)] if rng.random() < 0.02 else kinds)


def map_of(port: int, **options: Any) -> RedisBackingMap:
    given = {"url": f"redis://127.0.0.1:{port}", "backoff_s": 0.01, **options}
    return RedisBackingMap(RedisOptions(**given), StateConf("packing", f"state {next(_names)}"), 0, CodecSerializer())


@given(st.lists(words, min_size=1, max_size=9), st.lists(st.binary(max_size=1100), max_size=9))
def test_a_command_has_the_bytes_that_the_driver_gives_it(command: list[Any], more: list[bytes]) -> None:
    assert pack(tuple(command)) == hiredis.pack_command(tuple(command))
    assert pack((*command, Words(more), 7)) == hiredis.pack_command((*command, *more, 7))


@pytest.fixture
def maps(redis_server: Server) -> Iterator[list[RedisBackingMap]]:
    opened = [map_of(redis_server.port, **options) for options in ({}, {"max_keys_per_call": 7})]
    yield opened
    for each in opened:
        each.reset()
        each.close()


@pytest.mark.parametrize("seed", range(4))
def test_what_is_written_is_read_back_as_rows_and_as_columns(maps: list[RedisBackingMap], seed: int) -> None:
    rng = random.Random(seed)
    fields: list[Any] = ["", "\r\n", "é", b"\r\n$3\r\n", b"", None, -1, 2**70, *map(str, range(40))]
    keys: list[Key] = [(field,) for field in fields]
    for backing in maps:
        rng.shuffle(keys)
        some = keys[: rng.randrange(1, len(keys))]
        values = [OpaqueValue(rng.choice([5, 6]), rng.randrange(3), pair(rng), pair(rng)) for _ in some]
        backing.multi_put(some, values if seed % 2 else OpaqueTable.of(values))
        known = dict(zip(some, values, strict=True))
        asked = rng.sample(keys, len(keys))
        columns = backing.multi_get_opaque(asked)
        assert columns is not None
        assert list(columns) == backing.multi_get(asked) == [known.get(key) for key in asked]


def test_many_structs_of_numbers_have_the_bytes_that_rows_have(redis_server: Server) -> None:
    options = RedisOptions(f"redis://127.0.0.1:{redis_server.port}", max_keys_per_call=70)
    keys: list[Key] = [(f"k{at}",) for at in range(100 * len(SOME))]
    stored, news = [], list[Any]()
    for type_ in (TYPE, None):
        conf = StateConf("packing", f"state {next(_names)}", value_type=type_)
        state = OpaqueMap(RedisBackingMap(options, conf, 0, CodecSerializer()))
        for txid in (1, 2):
            if type_:
                news.append(summed(state, txid, SOME * 100))
                continue
            state.begin_commit(txid)
            state.multi_put(keys, news[txid - 1])
            state.commit(txid)
        with redis.Redis(port=redis_server.port) as client:
            stored.append(client.mget(encode_keys(keys, f"{conf.prefix}:".encode())))
        state.close()
    assert news[0] == SOME * 100 != news[1]
    assert stored[0] == stored[1]
    assert None not in stored[0]


@pytest.mark.sample(1)
@pytest.mark.parametrize("place", [0, 3, 19])
def test_answers_behind_an_error_are_not_taken_for_later_ones(redis_server: Server, place: int) -> None:
    keys: list[Key] = [(number,) for number in range(20)]
    values = [OpaqueValue(1, 1, None, number) for number in range(20)]
    with redis.Redis(port=redis_server.port) as admin:
        admin.acl_setuser("packer", enabled=True, passwords="+secret", keys="*", commands=["+@all"])
        backing = map_of(redis_server.port, url=f"redis://packer:secret@{redis_server.address}", max_keys_per_call=1)
        change = partial(admin.execute_command, "ACL", "SETUSER", "packer")
        allow, refuse = partial(change, "+@all"), partial(change, "-mget")
        backing.multi_put(keys, values)
        backing._named = ([], [])
        with pytest.raises(BackendError, match="NOPERM"):
            backing.multi_get_opaque(Interrupted(keys, place, refuse))
        allow()
        for _ in range(2):
            assert backing.multi_get(keys) == values
        backing.reset()
        backing.close()
        admin.acl_deluser("packer")
