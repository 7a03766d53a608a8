"""The Redis state when things go wrong: servers that are killed, wiped, full or closed; writers that were replaced."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from states.redis import RedisBackingMap, RedisOptions
from states.redis.evictions import persistence_risk
from states.redis.map import PUT
from states.redis.wire import Words, eval_of, pack
from tests.harness.proxy import Point, Proxy
from tests.harness.servers import Server
from tests.states.redis.redis_states import CONF, KEYS, Interrupted, count, interrupting, map_at, restart, state_at
from trident.errors import BackendError, FencedError, StateLossDetected, StateMismatchError, StoreAwayError
from trident.state.interfaces import StateConf
from trident.state.txid import Sentinel
from trident.storekit import record_fence
from trident.testing.backend.schedules import Log

pytestmark = pytest.mark.server

ATTEMPT = Sentinel("inc", 1, 5)


# ---- the server ends in the middle of a commit -----------------------------------------------------------------------


def test_a_killed_server_that_keeps_what_it_acknowledged_costs_nothing(start: Callable[..., Server]) -> None:
    server = start("--appendonly", "yes", "--appendfsync", "always")
    state, log = state_at(server, max_keys_per_call=1), Log()
    count(state, log)
    interrupting(state, partial(restart, server))
    count(state, log)  # goes on over a new connection
    assert state.multi_get(KEYS) == [2] * len(KEYS)
    count(state, log)
    assert state.multi_get(KEYS) == [3] * len(KEYS)
    state.close()


def test_a_commit_that_a_killed_server_broke_is_replayed_exactly(start: Callable[..., Server]) -> None:
    server = start("--appendonly", "yes", "--appendfsync", "always")
    state, log = state_at(server, max_keys_per_call=1, retries=0), Log()
    count(state, log)
    interrupting(state, server.kill)
    with pytest.raises(BackendError, match=f"write 40 keys of .* on Redis {server.address}") as caught:
        count(state, log)
    assert caught.value.retryable
    server.start()
    with redis.Redis(port=server.port) as raw:
        written = raw.dbsize() - 1
    assert written == len(KEYS)
    log.fail()
    count(state, log, KEYS[:20])  # the replay has other keys: what the broken attempt left of the others is undone
    log_again = [2] * 20 + [1] * 20
    assert state.multi_get_at(KEYS, log.snapshot()) == log_again
    count(state, log)
    assert state.multi_get(KEYS) == [value + 1 for value in log_again]
    state.close()


def test_a_server_that_restarts_empty_in_a_commit_is_named(start: Callable[..., Server]) -> None:
    server = start()
    state, log = state_at(server, max_keys_per_call=1), Log()
    count(state, log)
    interrupting(state, partial(restart, server))
    with pytest.raises(StateLossDetected, match=f"{server.address}.*restarted without its data"):
        count(state, log)
    log.fail()
    with pytest.raises(StateMismatchError, match="no commit at all"):
        count(state, log)
    with redis.Redis(port=server.port) as raw:
        assert raw.dbsize() == 0
    state.close()


@pytest.mark.parametrize("layout", [{}, {"ttl_s": 90_000}])
def test_a_store_wiped_between_the_reads_and_the_puts_of_a_commit_is_found(
    redis_server: Server, client: Any, layout: dict[str, Any]
) -> None:
    state, log = state_at(redis_server, **layout), Log()
    count(state, log)
    state.begin_commit(log.next())
    client.flushall()
    assert state.multi_get(KEYS) == [None] * len(KEYS)  # a read cannot tell
    with pytest.raises(StateLossDetected, match="Redis was emptied"):
        state.multi_put(KEYS, [1] * len(KEYS))
    assert client.dbsize() == 0
    state.close()


# ---- writers that were replaced --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [{}, {"ttl_s": 90_000}])
def test_a_writer_replaced_between_two_calls_of_a_put_writes_nothing_more(
    redis_server: Server, client: Any, layout: dict[str, Any]
) -> None:
    old, new = map_at(redis_server, **layout), map_at(redis_server, **layout)
    old.move_sentinel(ATTEMPT)

    def replace() -> None:
        new.move_sentinel(ATTEMPT._replace(attempt=6))
        new.multi_put(KEYS, [b"new"] * len(KEYS))

    keys = Interrupted(KEYS, 30, replace)
    with pytest.raises(FencedError, match=r"write 40 keys .*attempt 5 .*attempt 6 .*has taken over"):
        old.multi_put(keys, [b"old"] * len(KEYS))
    assert keys.acted
    with pytest.raises(FencedError):
        old.multi_put(KEYS[:1], [b"old"])
    with pytest.raises(FencedError):
        old.multi_delete(KEYS)
    assert new.multi_get(KEYS) == [b"new"] * len(KEYS)
    for each in (old, new):
        each.close()


# ---- connections that break ------------------------------------------------------------------------------------------


def test_a_put_whose_answer_is_lost_is_sent_again(redis_server: Server, client: Any) -> None:
    proxy = Proxy(redis_server.port)
    try:
        backing = RedisBackingMap(RedisOptions(f"redis://127.0.0.1:{proxy.port}", max_keys_per_call=4), CONF)
        backing.move_sentinel(ATTEMPT)

        def kill() -> None:
            client.client_kill_filter(_type="normal")

        acts: list[tuple[Point, Callable[[], None]]] = [("reply", lambda: None), ("half request", kill)]
        for point, act in acts:
            proxy.arm(point, act)
            backing.multi_put(KEYS, [point.encode()] * len(KEYS))
            assert not proxy.disarm()
            assert backing.multi_get(KEYS) == [point.encode()] * len(KEYS)
        proxy.arm("reply", lambda: None)
        backing.move_sentinel(ATTEMPT._replace(txid=2))
        assert not proxy.disarm()
        backing.multi_put(KEYS[:1], [b"next"])
        backing.close()
    finally:
        proxy.close()


def test_connections_may_break_at_any_call(redis_server: Server, client: Any) -> None:
    backing = map_at(redis_server)
    backing.move_sentinel(ATTEMPT)
    for place in range(len(KEYS)):
        values = [b"%d %d" % (place, number) for number in range(len(KEYS))]
        for keys in (Interrupted(KEYS, place, lambda: client.client_kill_filter(_type="normal")), KEYS):
            backing.multi_put(keys, values)
            assert backing.multi_get(KEYS) == values
        backing._named = ([], [])
        keys = Interrupted(KEYS, place, lambda: client.client_kill_filter(_type="normal"))
        assert backing.multi_get(keys) == values
        assert keys.acted
    backing.close()


def test_what_a_broken_connection_delivers_late_is_refused(redis_server: Server, client: Any) -> None:
    backing = map_at(redis_server)
    backing.move_sentinel(ATTEMPT)
    late = backing._fence.command(PUT, 0, Words([b"words/counts:\x01\x91\xa3the"]), Words([b"late"]))
    backing.multi_put(Interrupted(KEYS, 20, lambda: client.client_kill_filter(_type="normal")), [b"once"] * len(KEYS))
    backing.multi_put([("the",)], [b"later"])
    with redis.Redis(port=redis_server.port) as other:
        connection = other.connection_pool.get_connection()
        connection.send_packed_command([pack(eval_of(late))])
        assert connection.read_response() == b'["inc",1,5,1,true,"",""]'
        connection.disconnect()
    assert backing.multi_get([("the",), KEYS[-1]]) == [b"later", b"once"]
    assert backing.read_sentinel() == ATTEMPT
    backing.close()


def test_a_writer_replaced_while_disconnected_does_not_take_the_sentinel_back(
    redis_server: Server, client: Any
) -> None:
    old, new = map_at(redis_server), map_at(redis_server)
    old.move_sentinel(ATTEMPT)
    taken_over = ATTEMPT._replace(attempt=6)

    def replace() -> None:
        client.client_kill_filter(_type="normal")
        new.move_sentinel(taken_over)

    with pytest.raises(FencedError, match="write again"):
        old.multi_put(Interrupted(KEYS, 30, replace), [b"old"] * len(KEYS))
    assert new.read_sentinel() == taken_over
    assert new.multi_get(KEYS[31:]) == [None] * 9
    for each in (old, new):
        each.close()


def test_an_idle_connection_that_the_server_closed_is_opened_again(redis_server: Server, client: Any) -> None:
    backing = map_at(redis_server)
    backing.multi_put(KEYS[:1], [b"one"])
    assert client.client_kill_filter(_type="normal") >= 1
    assert backing.multi_get(KEYS[:1]) == [b"one"]
    backing.close()


def test_a_server_that_has_forgotten_the_scripts_gets_them_again(redis_server: Server, client: Any) -> None:
    backing = map_at(redis_server)
    client.script_flush()
    backing.move_sentinel(ATTEMPT)
    backing.multi_put(Interrupted(KEYS, 20, client.script_flush), [b"one"] * len(KEYS))
    assert backing.multi_get(KEYS) == [b"one"] * len(KEYS)
    backing.close()


def test_a_server_that_hangs_is_given_up_after_the_timeouts(start: Callable[..., Server]) -> None:
    server = start()
    backing = map_at(server, timeout_s=0.2, retries=1)
    backing.multi_put(KEYS[:1], [b"one"])
    server.pause()
    try:
        with pytest.raises(BackendError, match=rf"read 1 keys of .* on Redis {server.address}: Timeout") as caught:
            backing.multi_get(KEYS[:1])
        assert caught.value.retryable
    finally:
        server.resume()
    assert backing.multi_get(KEYS[:1]) == [b"one"]
    backing.close()


# ---- servers that refuse ---------------------------------------------------------------------------------------------


def test_an_unknown_host_is_named() -> None:
    backing = RedisBackingMap(RedisOptions("redis://user:hush@no-such-host.invalid:7000/2", retries=0))
    with pytest.raises(BackendError, match=r"on Redis no-such-host\.invalid:7000/2") as caught:
        backing.read_sentinel()
    assert "hush" not in str(caught.value)


def test_a_server_that_is_down_is_named_and_no_batch_is_spoken_of(start: Callable[..., Server]) -> None:
    server = start()
    server.kill()
    backing = RedisBackingMap(RedisOptions(f"redis://{server.address}", retries=0), CONF)
    with pytest.raises(BackendError, match=rf"Redis {server.address}: .*refused; is the server up") as caught:
        backing.read_sentinel()
    assert caught.value.retryable
    assert "batch" not in str(caught.value)


def test_a_wrong_or_missing_password_is_named_and_not_shown(start: Callable[..., Server]) -> None:
    server = start()
    with redis.Redis(port=server.port) as raw:
        raw.config_set("requirepass", "right")
    for url, text in (("user:hush@", "check user and password"), ("", "give user and password")):
        backing = RedisBackingMap(RedisOptions(f"redis://{url}{server.address}", retries=0))
        with pytest.raises(BackendError, match=text) as caught:
            backing.read_sentinel()
        assert "hush" not in str(caught.value)
        assert not caught.value.retryable
    backing = RedisBackingMap(RedisOptions(f"redis://{server.address}", password="right"))
    assert backing.read_sentinel() is None
    backing.close()


def test_a_user_without_the_right_is_named(redis_server: Server, client: Any) -> None:
    client.acl_setuser("reader", enabled=True, passwords=["+x"], categories=["+@read", "+@connection"], keys=["*"])
    try:
        options = RedisOptions(f"redis://{redis_server.address}", user="reader", password="x", retries=0)
        backing = RedisBackingMap(options, CONF)  # INFO and CONFIG are forbidden as well, and missed by nobody
        assert backing.multi_get(KEYS[:1]) == [None]
        with pytest.raises(BackendError, match="grant the user") as caught:
            backing.move_sentinel(ATTEMPT)
        assert not caught.value.retryable
        backing.close()
    finally:
        client.acl_deluser("reader")


def test_the_documented_rights_are_enough(redis_server: Server, client: Any) -> None:
    page = (Path(__file__).parents[3] / "docs/states/redis.md").read_text(encoding="utf-8")
    (rights,) = re.findall(r"\*\*Rights\.\*\* `(.*?)`", page)
    client.execute_command("ACL", "SETUSER", "worker", "on", ">x", "~words/counts:*", *rights.split())
    try:
        state, log = state_at(redis_server, user="worker", password="x", ttl_s=90_000), Log()
        count(state, log)
        count(state, log)
        assert sorted(state.get_tuples()) == sorted((*key, 2) for key in KEYS)
        state.reset()
        assert client.dbsize() == 0
        state.close()
    finally:
        client.acl_deluser("worker")


def test_a_sentinel_of_another_type_is_named(redis_server: Server, client: Any) -> None:
    client.set("words/counts:sentinels", "a string")
    backing = map_at(redis_server)
    for call in (lambda: backing.move_sentinel(ATTEMPT), backing.read_sentinel):
        with pytest.raises(BackendError, match="WRONGTYPE.*used for something else") as caught:
            call()
        assert not caught.value.retryable
    assert client.get("words/counts:sentinels") == b"a string"
    backing.close()


def test_a_full_server_and_a_replica_refuse_and_nothing_is_written(start: Callable[..., Server]) -> None:
    server = start()
    backing = map_at(server, retries=0)
    backing.move_sentinel(ATTEMPT)
    backing.multi_put(KEYS, [b"before"] * len(KEYS))
    with redis.Redis(port=server.port) as raw:
        raw.config_set("maxmemory", 1)
        with pytest.raises(BackendError, match="OOM.*raise maxmemory") as full:
            backing.multi_put(KEYS, [b"after"] * len(KEYS))
        assert full.value.retryable
        raw.config_set("maxmemory", 0)
        raw.replicaof("127.0.0.1", 1)
        with pytest.raises(BackendError, match="READONLY.*replica") as replica:
            backing.multi_put(KEYS, [b"after"] * len(KEYS))
        assert replica.value.retryable
        raw.replicaof("NO", "ONE")
    assert backing.multi_get(KEYS) == [b"before"] * len(KEYS)
    backing.close()


def test_a_server_that_runs_a_script_is_waited_for(start: Callable[..., Server]) -> None:
    server = start("--lua-time-limit", 1)
    backing = map_at(server, retries=0)
    with redis.Redis(port=server.port) as raw, closing(socket.create_connection(("127.0.0.1", server.port))) as other:
        other.sendall(b"EVAL 'while true do end' 0\r\n")
        while True:
            try:
                raw.ping()
            except redis.ResponseError:
                break
        with pytest.raises(StoreAwayError, match="BUSY.*end it with SCRIPT KILL"):
            backing.read_sentinel()
        raw.script_kill()
    assert backing.read_sentinel() is None
    backing.close()


# ---- what a server may lose ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "there is no persistence"),
        (("--save", "3600 1"), r"no append-only file.*\(save 3600 1\)"),
        (("--appendonly", "yes"), "everysec.*last second"),
        (("--appendonly", "yes", "--appendfsync", "no"), "appendfsync no"),
    ],
)
def test_what_a_crash_would_lose_is_said_once(
    start: Callable[..., Server], caplog: pytest.LogCaptureFixture, arguments: tuple[str, ...], text: str
) -> None:
    server = start(*arguments)
    with caplog.at_level(logging.WARNING, "states"):
        for _ in range(2):
            backing = map_at(server)
            assert backing.read_sentinel() is None
            backing.close()
    (record,) = caplog.records
    assert server.address in record.getMessage()
    assert re.search(text, record.getMessage())


def test_it_is_said_where_a_state_begins_and_not_at_each_later_start(
    start: Callable[..., Server], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, log, warned = start(), Log(), list[int]()
    with caplog.at_level(logging.WARNING, "states"):
        for _ in range(2):
            monkeypatch.setattr(record_fence, "_warned", set())  # as in another process
            state = state_at(server)
            count(state, log)
            state.close()
            warned.append(len(caplog.records))
    assert warned == [1, 1]


def test_nothing_is_said_of_a_server_that_loses_nothing_nor_by_a_reader(
    start: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    safe, unsafe = start("--appendonly", "yes", "--appendfsync", "always"), start()
    reader = RedisBackingMap(RedisOptions(f"redis://{unsafe.address}"), StateConf(read_only=True))
    with caplog.at_level(logging.WARNING, "states"):
        for backing in (map_at(safe), reader):
            assert backing.multi_get(KEYS[:1]) == [None]
            backing.close()
    assert caplog.records == []


def test_a_server_that_does_not_tell_is_believed_to_keep_snapshots_at_most() -> None:
    unknown: dict[str, str | None] = {"save": None, "appendfsync": None}
    assert "no append-only file: a crash" in persistence_risk({"aof_enabled": "0"}, unknown)
    assert persistence_risk({"aof_enabled": "1"}, unknown) == ""
    assert persistence_risk({}, unknown) == ""


def evict(server: Server, keep: int | None) -> int:
    """Have the server evict until it holds `keep` bytes beyond what it started with (None: evict a few keys only).

    Return how many keys went.
    """
    with redis.Redis(port=server.port) as raw:
        used = raw.info("memory")["used_memory"]
        raw.mset({f"ballast {number}": "x" * 1000 for number in range(20_000)})
        before = raw.info("stats")["evicted_keys"]
        # Of a few none is a key of the state, if the policy takes those that are used least.
        raw.config_set("maxmemory", raw.info("memory")["used_memory"] - 10_000 if keep is None else used + keep)
        raw.set("one more", "x")
        evicted = raw.info("stats")["evicted_keys"] - before
        raw.config_set("maxmemory", "1gb")
        return int(evicted)


def test_evictions_during_a_commit_are_found_and_stop_the_replay(start: Callable[..., Server]) -> None:
    server = start("--maxmemory", "1gb", "--maxmemory-policy", "allkeys-random")
    state, log = state_at(server), Log()
    count(state, log)
    txid = log.next()
    state.begin_commit(txid)
    state.multi_put(KEYS, [2] * len(KEYS))
    assert evict(server, 8 << 20) > 0
    with pytest.raises(StateLossDetected, match=r"[0-9]+ keys were evicted"):
        state.commit(txid)
    log.fail()
    with pytest.raises(StateMismatchError):
        count(state, log)
    state.close()


@pytest.mark.parametrize(("policy", "options"), [("allkeys-lfu", {"allow_eviction": True}), ("volatile-random", {})])
def test_evictions_that_are_accepted_or_hit_others_do_not_stop_a_commit(
    start: Callable[..., Server], policy: str, options: dict[str, Any]
) -> None:
    server = start("--maxmemory", "1gb", "--maxmemory-policy", policy, "--lfu-log-factor", "0")
    state, log = state_at(server, **options), Log()
    count(state, log)
    txid = log.next()
    state.begin_commit(txid)
    state.multi_put(KEYS, [2] * len(KEYS))
    if policy.startswith("allkeys"):
        assert evict(server, None) > 0
    else:
        with redis.Redis(port=server.port) as raw:
            raw.set("another's", "x", ex=1000)
            raw.config_set("maxmemory", 1)
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                raw.set("one more", "x")
            assert raw.info("stats")["evicted_keys"] == 1
            raw.config_set("maxmemory", "1gb")
    state.commit(txid)
    state.close()


def test_keys_that_expire_may_be_evicted_by_a_volatile_policy(start: Callable[..., Server]) -> None:
    server = start("--maxmemory", "1gb", "--maxmemory-policy", "volatile-ttl")
    state, log = state_at(server, ttl_s=90_000), Log()
    txid = log.next()
    state.begin_commit(txid)
    state.multi_put(KEYS, [1] * len(KEYS))
    with redis.Redis(port=server.port) as raw:
        raw.config_set("maxmemory", 1)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            raw.set("one more", "x")
        raw.config_set("maxmemory", "1gb")
    with pytest.raises(StateLossDetected, match="40 keys were evicted"):
        state.commit(txid)
    state.close()


def test_evictions_after_maxmemory_was_set_while_a_writer_was_connected_are_found(start: Callable[..., Server]) -> None:
    server = start()
    state, log = state_at(server), Log()
    count(state, log)  # no maxmemory, so nothing can be evicted yet
    txid = log.next()
    state.begin_commit(txid)
    state.multi_put(KEYS, [2] * len(KEYS))
    with redis.Redis(port=server.port) as raw:
        raw.config_set("maxmemory-policy", "allkeys-random")
        assert evict(server, 8 << 20) > 0
        raw.config_set("maxmemory-policy", "noeviction")  # as if nothing had been
    with pytest.raises(StateLossDetected, match=r"[0-9]+ keys were evicted"):
        state.commit(txid)
    log.fail()
    with pytest.raises(StateMismatchError):
        count(state, log)
    state.close()


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-lru"])
def test_a_commit_asks_once_for_evictions(start: Callable[..., Server], policy: str) -> None:
    server = start("--maxmemory", "1gb", "--maxmemory-policy", policy)
    state, log = state_at(server), Log()
    count(state, log)
    with redis.Redis(port=server.port) as raw:
        before = raw.info("commandstats")
        for _ in range(3):
            count(state, log)
        after = raw.info("commandstats")
    calls = {name: after[name]["calls"] - before[name]["calls"] for name in ("cmdstat_info", "cmdstat_evalsha")}
    assert calls == {"cmdstat_info": 3 + 1, "cmdstat_evalsha": 3 * 3}  # one INFO is that of this test
    state.close()


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-random"])
@pytest.mark.parametrize("how", ["a restart", "a reset of the counters"])
def test_what_sets_the_counters_back_hides_no_evictions(start: Callable[..., Server], how: str, policy: str) -> None:
    keeps = ("--appendonly", "yes", "--appendfsync", "always")
    server = start("--maxmemory", "1gb", "--maxmemory-policy", policy, *keeps)
    state, log = state_at(server), Log()
    count(state, log)
    txid = log.next()
    state.begin_commit(txid)
    if policy != "noeviction":
        assert evict(server, 8 << 20) > 0
    if how == "a restart":
        restart(server)
    else:
        with redis.Redis(port=server.port) as raw:
            raw.config_resetstat()
    if policy == "noeviction":
        state.commit(txid)
    else:
        with pytest.raises(StateLossDetected, match="counters restarted at 0"):
            state.commit(txid)
    state.close()
