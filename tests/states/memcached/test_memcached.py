"""A state in Memcached: values, fences and failures, on real servers."""

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

import pytest
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheServerError

from states.memcached import MemcachedMap, MemcachedOptions, MemcachedState
from states.memcached.fence import BaselineCodec, Health
from states.memcached.servers import MemcachedConnection
from tests.harness.proxy import Proxy
from tests.harness.servers import Server
from trident.errors import (
    BackendError,
    ConfigError,
    CorruptValueError,
    EnvironmentProblem,
    FencedError,
    StateLossDetected,
)
from trident.state import Sentinel, StateConf, StateSpec
from trident.state.values import OpaqueValue
from trident.storekit import SentinelRecord
from trident.testing.backend.schedules import Add, Log

_numbers = count()
HEALTH = Health(65536, 10, 1000, 2, 5)


def new_conf() -> StateConf:
    """Return the configuration of a state that nobody has used."""
    return StateConf("tests", f"state-{next(_numbers)}")


def opened(spec: StateSpec, conf: StateConf, partition: int = 0, partitions: int = 1) -> Any:
    return spec.factory.make_state(conf, partition, partitions)


def commit(state: Any, log: Log, counts: Mapping[str, int], record: bool = True) -> None:
    txid = log.next()
    state.begin_commit(txid)
    add(state, counts)
    state.commit(txid)
    if record:
        log.record()


def add(state: Any, counts: Mapping[str, int]) -> None:
    state.multi_update([(word,) for word in counts], [Add(number) for number in counts.values()])


def restart(server: Server) -> None:
    server.kill()
    server.start()


def flush(server: Server) -> None:
    client = Client(server.address)
    client.flush_all(noreply=False)
    client.close()


def read(state: Any, *words: str) -> list[Any]:
    return list(state.multi_get([(word,) for word in words]))


@pytest.fixture
def client(memcached_server: Server) -> Iterator[Client]:
    client = Client(memcached_server.address, default_noreply=False)
    yield client
    client.close()


def test_what_is_stored_under_which_name(memcached_server: Server, client: Client) -> None:
    conf, log = StateConf("tests", "stored"), Log()
    state = opened(MemcachedState.opaque(memcached_server.address, serializer="json", prefix="p q"), conf)
    commit(state, log, {"the": 3})
    assert client.get("p%20q:the") == b"[1,1048576,null,3]"
    epoch = client.get("p%20q!epoch")
    assert int(epoch) % 65536 == 0
    assert b'"sentinel":["contract-log",1,1048576,"tests/stored",true,""]' in client.get("p%20q!sentinel-0")
    assert f"VALUE p%20q:the {epoch.decode()} 18" in client.raw_command("get p%20q:the", "END\r\n").decode()


def test_a_long_key_never_gets_the_value_of_another(memcached_server: Server, client: Client) -> None:
    conf = new_conf()
    state = MemcachedMap(MemcachedOptions(servers=(memcached_server.address,)), conf)
    state.multi_put([("k" * 500,)], [b"mine"])
    (name,) = state._names.of([("k" * 500,)]).names
    epoch = int(client.get(f"tests/{conf.state}!epoch"))
    assert client.set(name, b"\x00\x00\x00\x05otherhers", flags=epoch)
    with pytest.raises(CorruptValueError, match="belongs to another key"):
        state.multi_get([("k" * 500,)])


def test_a_value_that_is_too_large_is_refused_by_name_and_the_old_one_stands(memcached_server: Server) -> None:
    state = MemcachedMap(MemcachedOptions(servers=(memcached_server.address,)), new_conf())
    state.multi_put([("big",), ("small",)], [b"old", b"old"])
    said = r"the value of key \('big',\) is larger than an item may be .* -I"
    with pytest.raises(BackendError, match=said) as failed:
        state.multi_put([("small",), ("big",)], [b"new", b"x" * (2 << 20)])
    assert not failed.value.retryable
    assert state.multi_get([("big",), ("small",)]) == [b"old", b"new"]


def test_a_value_expires_and_the_sentinel_does_not(memcached_server: Server, client: Client) -> None:
    spec = MemcachedState.opaque(memcached_server.address, ttl_s=2_000_000)
    conf, log = new_conf(), Log()
    state = opened(spec, conf)
    commit(state, log, {"a": 1})

    def left(name: str) -> bytes:
        (_, seconds) = client.raw_command(f"mg tests/{conf.state}{name} t").split()
        return bytes(seconds)

    assert 1_999_000 < int(left(":a")[1:]) <= 2_000_000
    assert [left("!sentinel-0"), left("!epoch")] == [b"t-1", b"t-1"]


def test_a_chunk_that_arrives_after_the_takeover_overwrites_nothing(memcached_server: Server) -> None:
    proxy = Proxy(memcached_server.port)
    spec, conf, log = MemcachedState.opaque(f"127.0.0.1:{proxy.port}"), new_conf(), Log()
    first, second = opened(spec, conf), opened(spec, conf)
    commit(first, log, {"a": 1, "b": 1, "gone": 1})
    late = log.next()
    first.begin_commit(late)
    backing = first.map_state.backing.backing

    def take_over() -> None:
        log.fail(takeover=True)
        commit(second, log, {"a": 2, "new": 2})
        second.map_state.backing.multi_delete([("gone",)])
        commit(second, log, {"new": 2})

    looked = backing._guard.check_own

    def look_then_hold() -> None:
        looked()
        proxy.arm("held request", take_over)  # the next request is the chunk itself

    backing._guard.check_own = look_then_hold
    with pytest.raises(FencedError, match="has taken over"):
        add(first, {"a": 10, "b": 10, "new": 10, "gone": 10})
    assert not proxy.disarm()
    assert second.multi_get_at([("a",), ("b",), ("new",), ("gone",)], log.snapshot()) == [3, 1, 4, None]
    # "b", which the successor has not touched, carries the attempt that lost: the next batch starts from what was before.
    assert second.map_state.backing.multi_get([("b",)]) == [OpaqueValue(2, 1 << 20, 1, 11)]
    commit(second, log, {"b": 1})
    assert second.multi_get_at([("b",)], log.snapshot()) == [2]
    proxy.close()


def test_a_key_that_somebody_else_writes_fails_the_batch_and_the_replay_succeeds(
    memcached_server: Server, client: Client
) -> None:
    conf, log = new_conf(), Log()
    state = opened(MemcachedState.opaque(memcached_server.address), conf)
    commit(state, log, {"a": 1, "b": 1})
    state.begin_commit(log.next())
    read(state, "a", "b")
    name = f"tests/{conf.state}:b"
    assert client.touch(name, 0)
    assert client.set(name, client.get(name), flags=int(client.get(f"tests/{conf.state}!epoch")))
    with pytest.raises(BackendError, match=r"key \('b',\) changed after they were read") as failed:
        state.map_state.backing.multi_put([("a",), ("b",)], [OpaqueValue(2, log.attempt, 1, 2)] * 2)
    assert failed.value.retryable
    log.fail()
    commit(state, log, {"a": 1, "b": 1})
    assert state.multi_get_at([("a",), ("b",)], log.snapshot()) == [2, 2]


def test_a_lost_reply_fails_the_batch_and_the_replay_is_exact(memcached_server: Server) -> None:
    proxy = Proxy(memcached_server.port)
    spec, log = MemcachedState.opaque(f"127.0.0.1:{proxy.port}"), Log()
    state = opened(spec, new_conf())
    commit(state, log, {"a": 1})
    state.begin_commit(log.next())
    write = MemcachedConnection.write

    def write_and_lose(self: MemcachedConnection, *given: Any) -> list[bytes]:
        proxy.arm("reply", lambda: None)
        return write(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemcachedConnection, "write", write_and_lose)
        with pytest.raises(BackendError, match="cannot write 2 names on memcached server") as failed:
            add(state, {"a": 1, "b": 1})
    assert failed.value.retryable
    assert state.map_state.backing.multi_get([("a",)]) == [OpaqueValue(2, log.attempt, 1, 2)]  # it was done
    log.fail()
    commit(state, log, {"a": 1, "b": 1})
    assert read(state, "a", "b") == [2, 1]
    proxy.close()


def test_a_connection_that_ends_before_a_chunk_takes_the_tokens_with_it(memcached_server: Server) -> None:
    proxy = Proxy(memcached_server.port)
    state, log = opened(MemcachedState.opaque(f"127.0.0.1:{proxy.port}", backoff_s=0.001), new_conf()), Log()
    commit(state, log, {"a": 1})
    state.begin_commit(log.next())
    (stored,) = state.map_state.backing.multi_get([("a",)])
    proxy.arm("reply", lambda: None)  # of the look at the sentinel, which is tried again over a new connection
    with pytest.raises(BackendError, match="ended before the chunk was sent") as failed:
        state.map_state.backing.multi_put([("a",)], [stored])
    assert failed.value.retryable
    state.map_state.backing.multi_put([("a",)], [stored])  # with tokens of the new connection
    proxy.close()


def test_a_read_is_tried_again_over_a_new_connection(memcached_server: Server) -> None:
    proxy = Proxy(memcached_server.port)
    conf = new_conf()
    state = MemcachedMap(MemcachedOptions(servers=(f"127.0.0.1:{proxy.port}",), backoff_s=0.001), conf)
    state.multi_put([("a",)], [b"1"])
    proxy.arm("reply", lambda: None)
    assert state.multi_get([("a",)]) == [b"1"]
    assert not proxy.disarm()
    once = MemcachedMap(MemcachedOptions(servers=(f"127.0.0.1:{proxy.port}",), retries=0), conf)
    proxy.arm("reply", lambda: None)
    with pytest.raises(BackendError, match="cannot read 2 names"):
        once.multi_get([("a",)])
    proxy.close()


@pytest.mark.server
def test_of_two_servers_the_dead_one_is_named(start_own_memcached: Callable[..., Server]) -> None:
    servers = [start_own_memcached() for _ in range(2)]
    spec, log = MemcachedState.opaque([server.address for server in servers], backoff_s=0.001), Log()
    state = opened(spec, new_conf())
    words = [f"word{number}" for number in range(2000)]
    commit(state, log, dict.fromkeys(words, 1))
    assert read(state, *words) == [1] * 2000
    items = [Client(server.address).stats()[b"curr_items"] for server in servers]
    assert min(items) > 700
    servers[1].kill()
    with pytest.raises(BackendError, match=f"memcached server {servers[1].address}"):
        read(state, *words)


def test_something_else_that_answers_is_refused(redis_server: Server) -> None:
    state = MemcachedMap(MemcachedOptions(servers=(redis_server.address,), retries=0), new_conf())
    with pytest.raises(BackendError, match=f"cannot read 2 names on memcached server {redis_server.address}"):
        state.multi_get([("a",)])


@pytest.mark.server
def test_memory_that_is_used_up_is_said(start_own_memcached: Callable[..., Server]) -> None:
    server = start_own_memcached("-m", "4", "-M")
    state = MemcachedMap(MemcachedOptions(servers=(server.address,)), new_conf())
    with pytest.raises(BackendError, match=r"out of memory for .* evicts nothing \(-M\)") as failed:
        state.multi_put([(number,) for number in range(200)], [b"x" * 500_000] * 200)
    assert failed.value.retryable


@pytest.mark.server
def test_a_server_without_cas_is_refused(start_own_memcached: Callable[..., Server]) -> None:
    server = start_own_memcached("-C")
    with pytest.raises(EnvironmentProblem, match="runs without cas"):
        opened(MemcachedState.opaque(server.address), new_conf()).begin_commit(Log().next())


@pytest.mark.server
def test_a_server_without_room_for_the_record_of_a_state_takes_none_of_its_values(
    start_own_memcached: Callable[..., Server],
) -> None:
    server = start_own_memcached("-m", "4", "-M")
    client = Client(server.address, default_noreply=False)
    small = (client.set(f"small-{number}", b"") for number in count())
    with pytest.raises(MemcacheServerError, match="out of memory"):  # for small items; larger ones still have room
        all(small)
    conf, log, word = new_conf(), Log(), "w" * 150
    state = opened(MemcachedState.opaque(server.address), conf)
    with pytest.raises(BackendError, match=r"out of memory for key \('the epoch',\) and evicts nothing \(-M\)"):
        commit(state, log, {word: 1})
    log.fail()
    client.flush_all()
    for _ in range(2):
        commit(state, log, {word: 1})
    assert read(state, word) == [2]
    client.close()


def test_a_server_that_evicts_is_warned_of_once(
    memcached_server: Server, start_own_memcached: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    safe = start_own_memcached("-M")
    with caplog.at_level(logging.WARNING):
        commit(opened(MemcachedState.opaque(safe.address), new_conf()), Log(), {"a": 1})
        assert caplog.messages == []
        state, log = opened(MemcachedState.opaque(memcached_server.address), new_conf()), Log()
        commit(state, log, {"a": 1})
        commit(state, log, {"a": 1})
    assert [message for message in caplog.messages if "start it with -M" in message] == caplog.messages[:1]
    assert len(caplog.messages) == 1


def test_servers_are_given_as_text_list_or_options() -> None:
    made = [
        MemcachedState.opaque("a:1, b:2", retries=5),
        MemcachedState.opaque(["a:1", "b:2"], retries=5),
        MemcachedState.opaque(MemcachedOptions(servers=("a:1", "b:2")), retries=5),
    ]
    assert made[0] == made[1] == made[2]
    MemcachedState.opaque("a, b:1, ::1:11211, [::1], [::1]:2, /run/memcached.sock, unix:/run/other.sock")
    for wrong in ("a:port", "memcached://a:1", "a:", "a:1,,b:1"):
        with pytest.raises(ConfigError, match="give at least one host:port, and each once"):
            MemcachedState.opaque(wrong)


@pytest.fixture
def server(start_own_memcached: Callable[..., Server]) -> Server:
    return start_own_memcached()


def map_on(address: str, conf: StateConf) -> MemcachedMap:
    return MemcachedMap(MemcachedOptions(servers=(address,), backoff_s=0.001, retries=1), conf)


def delete(server: Server, conf: StateConf) -> None:
    client = Client(server.address, default_noreply=False)
    assert client.delete(f"tests/{conf.state}!sentinel-0")
    client.close()


def insist(writer: MemcachedMap, sentinel: Sentinel, force: bool = False) -> None:
    """Move the sentinel, and again if the connection had ended with the server."""
    try:
        writer.move_sentinel(sentinel, force)
    except BackendError:
        writer.move_sentinel(sentinel, force)


EMPTIED: dict[str, Callable[[Server, StateConf], None]] = {
    "restart": lambda server, conf: restart(server),
    "flush": lambda server, conf: flush(server),
    "delete": delete,
}


@pytest.mark.server
@pytest.mark.parametrize("move", ["the next", "the next, by force", "the seal"])
@pytest.mark.parametrize("how", EMPTIED)
def test_a_store_that_was_emptied_since_the_read_or_in_a_commit_gets_no_sentinel(
    server: Server, how: str, move: str
) -> None:
    conf, begun = new_conf(), Sentinel("log", 1, 5, "tests/a", move != "the seal")
    writer = map_on(server.address, conf)
    writer.move_sentinel(begun)
    if move != "the seal":
        writer = map_on(server.address, conf)
        assert writer.read_sentinel() == begun
    EMPTIED[how](server, conf)
    wanted = begun._replace(sealed=True) if move == "the seal" else begun._replace(txid=2)
    with pytest.raises(StateLossDetected, match="was restarted|flush_all|its sentinel .*is gone"):
        insist(writer, wanted, move == "the next, by force")
    assert map_on(server.address, conf).read_sentinel() is None


@pytest.mark.parametrize("taken", [False, True])
def test_a_move_without_an_answer_finds_its_own_record_or_nothing(memcached_server: Server, taken: bool) -> None:
    conf, proxy = new_conf(), Proxy(memcached_server.port)
    writer = map_on(f"127.0.0.1:{proxy.port}", conf)
    writer.move_sentinel(Sentinel("log", 1, 5))
    writer.read_sentinel()
    proxy.arm("reply", lambda: None)
    with pytest.raises(BackendError, match="cannot write 1 names"):
        writer.move_sentinel(Sentinel("log", 2, 5))
    if taken:
        other = map_on(memcached_server.address, conf)
        other.read_sentinel()
        other.move_sentinel(Sentinel("log", 2, 6))
        with pytest.raises(FencedError, match="batch 2 attempt 6"):
            writer.move_sentinel(Sentinel("log", 2, 5))
    else:
        writer.move_sentinel(Sentinel("log", 2, 5))
        writer.multi_put([("a",)], [b"1"])
    assert writer.read_sentinel() == Sentinel("log", 2, 6 if taken else 5)
    proxy.close()


def test_the_record_of_a_sentinel_is_json() -> None:
    data = b'{"sentinel":["log",3,1048576,"words/count",false,"4f1c"],"servers":{"a:1":[65536,10,1000,2,5,70]}}'
    record = SentinelRecord(
        Sentinel("log", 3, 1 << 20, "words/count", False, "4f1c"), {"a:1": HEALTH._replace(sent=70)}
    )
    assert BaselineCodec().encode(record) == data
    assert tuple(BaselineCodec().decode(data, "state p").sentinel) == tuple(record.sentinel)
    assert BaselineCodec().decode(data, "state p").notes == record.notes
