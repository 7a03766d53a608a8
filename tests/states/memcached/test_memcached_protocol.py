"""Framing and names: what is cut out of the stream is what was put in, however the bytes arrive."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pymemcache.client.base import Client

from states.memcached.key_names import MAX_NAME_BYTES, Named, Names, prefix_of
from states.memcached.servers import Item, MemcachedOptions, Refusal, Replies, Servers, gets_command, store_commands
from tests.harness.servers import Server
from trident.errors import ConfigError, CorruptValueError
from trident.state.interfaces import StateConf

_numbers = itertools.count(10**9)
NASTY = [b"", b"\r\n", b"END\r\n", b"\r\nEND\r\n", b"VALUE a 0 1 1\r\nx\r\nEND\r\n", b"STORED\r\n", b"\x00\xff" * 9]
values = st.one_of(st.sampled_from(NASTY), st.binary(max_size=64), st.integers(1, 2000).map(lambda n: b"\r\nEND" * n))
names = st.from_regex(rb"[!-~]{1,40}", fullmatch=True)
items = st.dictionaries(
    names, st.tuples(st.integers(0, 2**32 - 1), values, st.integers(1, 2**64 - 1)), min_size=0, max_size=12
)


def receiver(data: bytes, sizes: list[int]) -> Callable[[int], bytes]:
    """Return a `recv` that gives the bytes in pieces of the given sizes, over and over."""
    rest, pieces = [data], itertools.cycle(sizes)

    def receive(most: int) -> bytes:
        size = min(most, next(pieces))
        piece, rest[0] = rest[0][:size], rest[0][size:]
        return piece

    return receive


def wire(found: dict[bytes, tuple[int, bytes, int]]) -> bytes:
    parts = [b"VALUE %b %d %d %d\r\n%b\r\n" % (n, f, len(v), c, v) for n, (f, v, c) in found.items()]
    return b"".join([*parts, b"END\r\n"])


@pytest.mark.slow
@given(st.lists(items, min_size=1, max_size=3), st.lists(st.integers(1, 5000), min_size=1, max_size=4))
@example([{b"a": (0, b"\r\nEND\r\n", 1)}, {}], [1])
def test_items_are_cut_by_their_length_however_the_bytes_arrive(
    replies: list[dict[bytes, tuple[int, bytes, int]]], sizes: list[int]
) -> None:
    reader = Replies(receiver(b"".join(map(wire, replies)) + b"OK\r\n", sizes))
    for reply in replies:
        assert reader.items() == {n: Item(b"%d" % f, v, b"%d" % c) for n, (f, v, c) in reply.items()}
    assert reader.lines(1) == [b"OK"]


@given(items, st.lists(st.integers(1, 5000), min_size=1, max_size=4))
@example({b"a": (0, b"", 1)}, [1])
@example({b"a": (0, b"END", 1), b"b": (0, b"\r\nVALUE b 0 1 1\r\nx", 1)}, [5000])
@example({b"a": (0, b"VALUE", 1), b"b": (0, b"\r\nEND\r\n", 2)}, [31, 4])
def test_a_reply_is_the_same_cut_at_once_or_item_by_item(
    reply: dict[bytes, tuple[int, bytes, int]], sizes: list[int]
) -> None:
    reader = Replies(receiver(wire(reply), sizes))
    assert reader.items() == {n: Item(b"%d" % f, v, b"%d" % c) for n, (f, v, c) in reply.items()}
    with pytest.raises(ConnectionError):
        reader.items()


@pytest.mark.parametrize("values", [[b"x"], [b"x", b"\r\n", b"END"]])
def test_an_error_behind_some_items_is_refused_and_not_waited_for(values: list[bytes]) -> None:
    reply = wire({b"%d" % at: (0, value, 1) for at, value in enumerate(values)})[: -len(b"END\r\n")]
    rest = [reply, b"SERVER_ERROR out of memory writing get response\r\n"]
    with pytest.raises(Refusal, match="out of memory"):
        Replies(lambda _most: rest.pop(0)).items()  # which fails if it is asked for more


@given(st.lists(st.tuples(names, values, st.none() | st.integers(1, 2**64 - 1)), max_size=5))
def test_each_item_has_its_own_command(items: list[tuple[bytes, bytes, int | None]]) -> None:
    tokens = [None if token is None else b"%d" % token for *_, token in items]
    commands = store_commands([name for name, *_ in items], b"5", b"0", [value for _, value, _ in items], tokens)
    assert commands == b"".join(
        b"%b %b 5 0 %d%b\r\n%b\r\n" % (b"add" if token is None else b"cas", name, len(value),
                                      b"" if token is None else b" " + token, value)
        for (name, value, _), token in zip(items, tokens, strict=True)
    )  # fmt: skip


@given(st.lists(st.sampled_from([b"STORED", b"EXISTS", b"SERVER_ERROR object too large for cache"]), min_size=1),
       st.lists(st.integers(1, 50), min_size=1, max_size=4))  # fmt: skip
def test_lines_are_read_one_for_each_command(lines: list[bytes], sizes: list[int]) -> None:
    reader = Replies(receiver(b"".join(line + b"\r\n" for line in lines), sizes))
    assert reader.lines(len(lines)) == lines


@pytest.mark.parametrize(
    "data", [b"ERROR\r\n", b"VALUE a 0 1\r\nx\r\nEND\r\n", b"VALUE a 0 1 1\r\nxyzEND\r\n", b"VALUE a 0 x 1\r\n",
             b"SERVER_ERROR out of memory\r\n", b"STORED\r\n", b"HTTP/1.1 400 Bad Request\r\n"]
)  # fmt: skip
def test_what_is_no_reply_to_gets_is_refused(data: bytes) -> None:
    with pytest.raises(Refusal):
        Replies(receiver(data, [4096])).items()


def test_more_replies_than_commands_are_refused() -> None:
    with pytest.raises(Refusal, match="after 1 replies"):
        Replies(receiver(b"STORED\r\nSTORED\r\n", [4096])).lines(1)


@pytest.mark.parametrize("data", [b"", b"VALUE a 0 9 1\r\nabc", b"STOR"])
def test_a_connection_that_ends_within_a_reply_is_an_error(data: bytes) -> None:
    with pytest.raises(ConnectionError, match="closed"):
        Replies(receiver(data, [2])).items()
    with pytest.raises(ConnectionError, match="closed"):
        Replies(receiver(data, [2])).lines(9)


@given(st.dictionaries(names, values, min_size=1, max_size=20))
def test_what_the_server_stores_is_what_comes_back(memcached_server: Server, stored: dict[bytes, bytes]) -> None:
    client = Client(memcached_server.address)
    assert client.version()
    stored = {b"%d%b" % (next(_numbers), name): value for name, value in stored.items()}
    replies = Replies(client.sock.recv)
    client.sock.sendall(store_commands(list(stored), b"65536", b"0", list(stored.values()), [None] * len(stored)))
    assert replies.lines(len(stored)) == [b"STORED"] * len(stored)
    client.sock.sendall(gets_command(stored))
    found = replies.items()
    assert {name: (item.flags, item.data) for name, item in found.items()} == {
        name: (b"65536", value) for name, value in stored.items()
    }
    tokens = [found[name].token if at % 2 else b"%d" % (2**64 - 1) for at, name in enumerate(stored)]
    client.sock.sendall(store_commands(list(stored), b"0", b"0", [b"new"] * len(stored), tokens))
    assert replies.lines(len(stored)) == [b"STORED" if at % 2 else b"EXISTS" for at in range(len(stored))]
    client.close()


CONF = StateConf("words", "counts")
KEYS: list[tuple[Any, ...]] = [
    ("the",), ("=the",), ("#the",), ("a b",), ("",), (), ("é",), ("a\r\nb",), (1,), ("1",), (1.0,), (True,), (None,),
    (b"the",), (b"\x00\xff",), ("a", "b"), ("a,b",), ("x" * 236,), ("x" * 237,), ("x" * 238,), ("é" * 500,),
    (b"\xff" * 5000,), ("a:b",), ("%20",),
]  # fmt: skip


def test_every_key_has_a_legal_name_of_its_own() -> None:
    found = Names(prefix_of(CONF, None)).of(KEYS)
    assert len(set(found.names)) == len(KEYS)
    assert max(map(len, found.names)) == MAX_NAME_BYTES
    assert all(set(name) <= set(range(33, 127)) for name in found.names)
    assert {KEYS[at][0][:1] for at in found.hashed} == {"x", "é", b"\xff"}
    assert found.names[0] == b"words/counts:the"
    assert not {b"words/counts:=the", b"words/counts:#the"} & set(found.names)  # no text looks like base64 or a hash


@given(st.lists(st.tuples(st.text("ab!~=# \n\xe9", max_size=3) | st.integers()), max_size=6))
def test_many_keys_have_the_names_that_they_have_one_by_one(keys: list[tuple[Any, ...]]) -> None:
    made = Names("p")
    assert made.of(keys).names == [made.of([key]).names[0] for key in keys]


@given(st.lists(st.tuples(st.one_of(st.text(), st.binary(), st.integers(), st.floats(allow_nan=False))), unique=True))
def test_names_are_different_where_encoded_keys_are(keys: list[tuple[Any, ...]]) -> None:
    typed = {(type(key[0]), key[0]) for key in keys}
    assert len(set(Names("p").of(keys).names)) == len(typed)


def test_no_prefix_is_the_beginning_of_anothers_names() -> None:
    confs = [("a", "b"), ("a", "b:x"), ("a", "b!x"), ("a/b", "x"), ("a", "b/x"), ("a b", "x"), ("a%20b", "x")]
    prefixes = [prefix_of(StateConf(topology, state), None) for topology, state in confs]
    starts = [prefix + end for prefix in prefixes for end in (":", "!")]
    assert len({*starts}) == 2 * len(confs)
    assert not any(a != b and a.startswith(b) for a in starts for b in starts)


@pytest.mark.parametrize("prefix", ["", "x" * 121, "é" * 21])
def test_a_prefix_that_leaves_no_room_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="give a prefix of 1 to 120 bytes"):
        prefix_of(CONF, prefix)


def test_the_value_of_another_key_under_the_same_hash_is_refused() -> None:
    (data,) = Named([b"name"], {0: b"one"}).wrap([b"value"])
    assert Named([b"name"], {0: b"one"}).unwrap([("one",)], {b"name": data}) == [b"value"]
    for other in (b"two", b"on", b"onev"):
        with pytest.raises(CorruptValueError, match="belongs to another key"):
            Named([b"name"], {0: other}).unwrap([(other,)], {b"name": data})


def placed(*servers: str) -> dict[bytes, str]:
    keys = [b"name-%d" % number for number in range(3000)]
    found = Servers(MemcachedOptions(servers=servers)).chunks(keys)
    return {keys[at]: connection.name for connection, places in found for at in places}


def test_names_spread_over_the_servers_and_few_move_when_one_is_added() -> None:
    three, four = placed("a:1", "b:1", "c:1"), placed("a:1", "b:1", "c:1", "d:1")
    shares = [list(three.values()).count(server) for server in ("a:1", "b:1", "c:1")]
    assert sum(shares) == 3000
    assert min(shares) > 800
    assert {four[name] for name in three if four[name] != three[name]} == {"d:1"}
    assert placed("c:1", "a:1", "b:1") == three
    servers = Servers(MemcachedOptions(servers=("a:1", "b:1", "c:1")))
    assert all(servers.of(name).name == server for name, server in three.items())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"servers": ()}, "at least one host:port"),
        ({"servers": ("a:1", "a:1")}, "each once"),
        ({"max_keys_per_call": 10_001}, "from 1 to 10000"),
        ({"ttl_s": 31 * 86400}, "at most 2592000"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        MemcachedOptions(**options)
