"""Commands and answers as bytes: any words, any values, errors and lost connections in the middle of an answer."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import hiredis
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from states.redis import RedisBackingMap, RedisOptions
from states.redis.wire import Words, pack
from tests.harness.servers import Server
from tests.states.memory.test_struct_columns import SOME, TYPE, summed
from tests.states.redis.redis_states import Interrupted
from trident.errors import BackendError
from trident.state import CodecSerializer, Key, OpaqueMap, OpaqueValue
from trident.state.encoding.codec import encode_keys
from trident.state.interfaces import StateConf
from trident.state.table import OpaqueTable

_names = itertools.count()
NASTY = [
    b"",
    b"\r\n",
    b"$5\r\nhello\r\n",
    b"*1\r\n",
    b"-OOM\r\n",
    b"-MOVED 1 a:1\r\n",
    b"\x00\xff",
    b"x" * 1023,
    b"x" * 1024,
]
words = st.one_of(st.sampled_from(NASTY), st.binary(max_size=40), st.integers(-9, 10**20), st.text(max_size=9))


def pair(rng: random.Random) -> Any:
    """A value as streams have them: numbers, texts with line breaks, nothing, and now and then a large one."""
    kinds = [
        None,
        rng.randrange(-(2**40), 2**40),
        3338,
        rng.random(),
        "",
        "\r\n$1\r\n",
        rng.randbytes(40),
        b"",
        ["a", (1, None)],
    ]
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


@pytest.mark.server
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


@pytest.mark.server
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


@pytest.mark.server
@pytest.mark.sample(1)
@pytest.mark.parametrize("place", [0, 3, 19])
def test_answers_behind_an_error_are_not_taken_for_later_ones(redis_server: Server, place: int) -> None:
    keys: list[Key] = [(number,) for number in range(20)]
    values = [OpaqueValue(1, 1, None, number) for number in range(20)]
    with redis.Redis(port=redis_server.port) as admin:
        admin.acl_setuser("packer", enabled=True, passwords="+secret", keys="*", commands=["+@all"])
        backing = map_of(redis_server.port, url=f"redis://packer:secret@{redis_server.address}", max_keys_per_call=1)
        allow, refuse = [
            partial(admin.execute_command, "ACL", "SETUSER", "packer", word) for word in ("+@all", "-mget")
        ]
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
