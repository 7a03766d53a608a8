"""The Redis state: what it stores under which key, its options, commits over a real server, a whole topology."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from spouts import FixedBatchSpout
from states.redis import RedisBackingMap, RedisOptions, RedisState
from tests.harness.servers import Server, free_ports, make_certificate, start_redis
from tests.harness.topology_runs import run_all
from trident import TridentTopology, move_state
from trident.errors import BackendError, ConfigError, CorruptValueError, TopologyChangedError
from trident.operations import Sum
from trident.state.encoding.codec import encode_keys
from trident.state.interfaces import Key, StateConf
from trident.state.txid import Sentinel

Open = Callable[..., RedisBackingMap]
_numbers = itertools.count(1)


@pytest.fixture
def url(redis_server: Server) -> str:
    return f"redis://{redis_server.address}/0"


@pytest.fixture
def open_map(url: str) -> Iterator[Open]:
    opened: list[RedisBackingMap] = []

    def open_one(topology: str = "words", state: str = "counts", partition: int = 0, **options: Any) -> RedisBackingMap:
        opened.append(RedisBackingMap(RedisOptions(url, **options), StateConf(topology, state), partition))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def keys_of(backing: RedisBackingMap) -> list[Key]:
    return sorted((key for page in backing.key_pages() for key in page), key=repr)


def test_each_key_is_a_string_under_the_prefix_and_the_sentinels_are_one_hash(open_map: Open, client: Any) -> None:
    backing = open_map()
    backing.move_sentinel(Sentinel("inc", 3, 1 << 20, "words/counts", sealed=False))
    open_map(partition=1).move_sentinel(Sentinel("inc", 2, 1 << 20))
    backing.multi_put([("the",), ("cow", 1)], [b"one", b"two"])
    assert {name: client.type(name) for name in client.scan_iter()} == {
        b"words/counts:\x01\x91\xa3the": b"string",
        b"words/counts:\x01\x92\xa3cow\x01": b"string",
        b"words/counts:sentinels": b"hash",
    }
    assert client.get(b"words/counts:\x01\x91\xa3the") == b"one"
    begun, other = b'["inc",3,1048576,0,false,"words/counts",""]', b'["inc",2,1048576,0,true,"",""]'
    assert client.hgetall("words/counts:sentinels") == {b"0": begun, b"0:calls": b"1", b"1": other}
    backing.move_sentinel(Sentinel("inc", 3, 1 << 20, "words/counts"))
    sealed = b'["inc",3,1048576,0,true,"words/counts",""]'
    assert client.hgetall("words/counts:sentinels") == {b"0": sealed, b"1": other}


@pytest.mark.parametrize("odd", ["a/b", "a:b", "a*", "a?", "[a]", "a\\", "a^-]", "é"])
def test_a_prefix_lists_and_resets_its_own_keys_only(open_map: Open, client: Any, odd: str) -> None:
    others = ["a", "ab", "a/", "aa", "A", "a*b"]
    for prefix in [odd, *others]:
        open_map(prefix=prefix).multi_put([(prefix,)], [b"x"])
    backing = open_map(prefix=odd)
    backing.move_sentinel(Sentinel("inc", 1, 0))
    assert keys_of(backing) == [(odd,)]
    backing.reset()
    assert backing.multi_get([(odd,)]) == [None]
    assert backing.read_sentinel() is None
    assert [keys_of(open_map(prefix=other)) for other in others] == [[(other,)] for other in others]


def test_a_listing_leaves_out_what_another_program_put_under_the_prefix(open_map: Open, client: Any) -> None:
    open_map().multi_put([("the",)], [b"one"])
    client.mset({"words/counts:note": "x", "words/counts:": "y"})
    assert keys_of(open_map()) == [("the",)]


def test_equal_keys_of_other_types_keep_their_own_names_within_a_commit(open_map: Open, client: Any) -> None:
    backing = open_map()
    assert backing.multi_get([(1,), ("x",)]) == [None, None]
    backing.multi_put([(True,), ("x",)], [b"true", b"x"])
    assert backing.multi_get([(1,), (True,), ("x",)]) == [None, b"true", b"x"]


def test_large_values_go_in_calls_of_bounded_size(open_map: Open, client: Any) -> None:
    values = [bytes([number]) * (1 << 20) for number in range(24)]
    keys = [(number,) for number in range(24)]
    before = client.info("commandstats").get("cmdstat_mset", {"calls": 0})["calls"]
    backing = open_map(max_bytes_per_call=4 << 20)
    backing.multi_put(keys, values)
    assert backing.multi_get(keys) == values
    assert client.info("commandstats")["cmdstat_mset"]["calls"] - before == 6


def test_no_call_has_more_keys_than_the_option_says(open_map: Open, client: Any) -> None:
    backing = open_map(max_keys_per_call=3_900)
    keys = [(number,) for number in range(7_801)]
    client.config_resetstat()
    backing.multi_put(keys, [b"x"] * len(keys))
    backing.multi_get(keys)
    stats = client.info("commandstats")
    assert (stats["cmdstat_mset"]["calls"], stats["cmdstat_mget"]["calls"]) == (3, 3)


def test_a_key_expires_after_its_last_write_and_the_sentinel_never(open_map: Open, client: Any) -> None:
    backing = open_map(ttl_s=90_000)
    backing.move_sentinel(Sentinel("inc", 1, 0))
    backing.multi_put([("the",)], [b"one"])
    name = b"words/counts:" + encode_keys([("the",)])[0]
    assert 89_000 < client.ttl(name) <= 90_000
    client.expire(name, 5)
    backing.multi_put([("the",)], [b"two"])
    assert client.ttl(name) > 89_000
    assert client.ttl("words/counts:sentinels") == -1


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("redis://localhost", {"max_keys_per_call": 4_000}, "from 1 to 3900"),
        ("redis://localhost", {"prefix": ""}, "control characters"),
        ("redis://localhost", {"prefix": "a\x01"}, "control characters"),
        ("redis://localhost", {"tls_verify": False}, "no TLS"),
        ("redis://localhost", {"cluster": True, "database": 2}, "database 0 only"),
        *(
            (bad, {}, "redis://host:port/database")
            for bad in ("localhost:6379", "http://localhost", "", "unix+cluster://x")
        ),
    ],
)
def test_an_impossible_option_is_refused_at_the_call(url: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        RedisState.opaque(url, **options)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://user:hush@localhost:port/0", "cannot be read"),
        ("redis://:hush@localhost?no_such_option=1", "no_such_option"),
    ],
)
def test_a_url_that_redis_py_cannot_read_is_refused_without_its_password(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        RedisBackingMap(RedisOptions(url))
    assert "hush" not in str(caught.value)


def test_the_database_of_the_option_is_used_in_place_of_that_of_the_url(open_map: Open, client: Any, url: str) -> None:
    open_map(database=3).multi_put([("the",)], [b"one"])
    assert client.dbsize() == 0
    with redis.Redis.from_url(url[:-1] + "3") as third:
        assert third.dbsize() == 1


@pytest.mark.server
def test_a_unix_socket_is_as_good_as_a_port(tmp_path_factory: pytest.TempPathFactory) -> None:
    work = tmp_path_factory.mktemp("r")
    server = start_redis(work, "--unixsocket", work / "s")
    try:
        backing = RedisBackingMap(RedisOptions(f"unix://{work}/s?db=1"))
        backing.multi_put([("the",)], [b"one"])
        assert backing.multi_get([("the",)]) == [b"one"]
        backing.close()
    finally:
        server.stop()


@pytest.mark.server
def test_tls_is_used_and_verified(tmp_path: Path) -> None:
    make_certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    (tls,) = free_ports(1)
    server = start_redis(
        tmp_path, "--tls-port", tls, "--tls-cert-file", tmp_path / "cert.pem", "--tls-key-file", tmp_path / "key.pem",
        "--tls-ca-cert-file", tmp_path / "cert.pem", "--tls-auth-clients", "no",
    )  # fmt: skip
    try:
        backing = RedisBackingMap(RedisOptions(f"rediss://127.0.0.1:{tls}", tls_ca_file=str(tmp_path / "cert.pem")))
        backing.multi_put([("the",)], [b"one"])
        assert backing.multi_get([("the",)]) == [b"one"]
        backing.close()
        with pytest.raises(BackendError, match="certificate"):
            RedisBackingMap(RedisOptions(f"redis://127.0.0.1:{tls}", tls=True, retries=0)).read_sentinel()
        unchecked = RedisBackingMap(RedisOptions(f"rediss://127.0.0.1:{tls}", tls_verify=False))
        assert unchecked.multi_get([("the",)]) == [b"one"]
        unchecked.close()
    finally:
        server.stop()


def test_a_closed_map_opens_again(open_map: Open, client: Any) -> None:
    backing = open_map()
    backing.multi_put([("the",)], [b"one"])
    backing.close()
    assert backing.multi_get([("the",)]) == [b"one"]


def test_a_value_of_another_program_is_named_with_its_key(url: str, client: Any) -> None:
    client.set(b"words/counts:\x01\x91\xa3the", b"\xffjunk")
    state = RedisState.opaque(url).factory.make_state(StateConf("words", "counts"), 0, 1)
    with pytest.raises(CorruptValueError, match=r"\('the',\)"):
        state.multi_get([("the",)])
    state.close()


def test_a_sentinel_of_another_program_is_named_with_its_key(open_map: Open, client: Any) -> None:
    client.hset("words/counts:sentinels", "0", "junk")
    with pytest.raises(CorruptValueError, match="words/counts:sentinels"):
        open_map().read_sentinel()


@pytest.mark.parametrize(("before", "after"), [("codec", "json"), ("json", "codec")])
def test_values_are_of_one_serializer_and_of_another_one_after_a_move(
    before: str, after: str, url: str, tmp_path: Path
) -> None:
    def declared(rows: int, prefix: str, serializer: str) -> TridentTopology:
        topology = TridentTopology("t")
        given = [["a", 1], ["b", 2], ["c", 4], ["a", 8]][:rows]
        stream = topology.new_stream("s", FixedBatchSpout("k: string, n: int", 1, *given)).group_by("k")
        spec = RedisState.opaque(url, prefix=f"{tmp_path.name}/{prefix}", serializer=serializer)
        stream.persistent_aggregate(spec, "n", Sum(), "total", state_name="total")
        return topology

    log: dict[str, Any] = {"log_dir": str(tmp_path / "log")}
    run_all(declared(2, "one", before), "in_process", **log)
    said = f"serializer {before} -> {after}\n.*trident state move OLD.py:topology total"
    with pytest.raises(TopologyChangedError, match=said):
        declared(3, "one", after).start(engine="in_process", **log)
    run_all(declared(3, "one", before), "in_process", **log)
    move_state(declared(3, "one", before), "total", declared(3, "two", after), **log)
    running = run_all(declared(4, "two", after), "in_process", **log)
    assert running.state("total").multi_get(["a", "b", "c"]) == [9, 2, 4]
