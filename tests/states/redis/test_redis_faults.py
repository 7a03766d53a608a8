"""The Redis state when things go wrong: errors, evictions, restarts, and servers that come back without their latest data."""

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
SAFE = ("--appendonly", "yes", "--appendfsync", "always")


def test_a_commit_that_a_killed_server_broke_is_replayed_exactly(start: Callable[..., Server]) -> None:
    server = start(*SAFE)
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


@pytest.mark.parametrize("disconnects", [False, True])
@pytest.mark.parametrize("layout", [{}, {"ttl_s": 90_000}])
def test_a_writer_replaced_between_two_calls_of_a_put_writes_nothing_more(
    redis_server: Server, client: Any, layout: dict[str, Any], disconnects: bool
) -> None:
    old, new = map_at(redis_server, **layout), map_at(redis_server, **layout)
    old.move_sentinel(ATTEMPT)
    taken_over = ATTEMPT._replace(attempt=6)

    def replace() -> None:
        if disconnects:  # to make the connection again does not take the sentinel back
            client.client_kill_filter(_type="normal")
        new.move_sentinel(taken_over)
        new.multi_put(KEYS, [b"new"] * len(KEYS))

    keys, said = Interrupted(KEYS, 30, replace), "write again" if disconnects else "write 40 keys"
    with pytest.raises(FencedError, match=f"{said} .*attempt 5 .*attempt 6 .*has taken over"):
        old.multi_put(keys, [b"old"] * len(KEYS))
    assert keys.acted
    with pytest.raises(FencedError):
        old.multi_put(KEYS[:1], [b"old"])
    with pytest.raises(FencedError):
        old.multi_delete(KEYS)
    assert (new.read_sentinel(), new.multi_get(KEYS)) == (taken_over, [b"new"] * len(KEYS))
    for each in (old, new):
        each.close()


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


def test_a_server_that_has_forgotten_the_scripts_gets_them_again(redis_server: Server, client: Any) -> None:
    backing = map_at(redis_server)
    client.script_flush()
    backing.move_sentinel(ATTEMPT)
    backing.multi_put(Interrupted(KEYS, 20, client.script_flush), [b"one"] * len(KEYS))
    assert backing.multi_get(KEYS) == [b"one"] * len(KEYS)
    backing.close()


def test_an_unknown_host_is_named() -> None:
    backing = RedisBackingMap(RedisOptions("redis://user:hush@no-such-host.invalid:7000/2", retries=0))
    with pytest.raises(BackendError, match=r"on Redis no-such-host\.invalid:7000/2") as caught:
        backing.read_sentinel()
    assert "hush" not in str(caught.value)


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


@pytest.mark.parametrize(
    ("arguments", "read_only", "text"),
    [
        ((), False, "there is no persistence"),
        (("--save", "3600 1"), False, r"no append-only file.*\(save 3600 1\)"),
        (SAFE[:2], False, "everysec.*last second"),
        ((*SAFE[:3], "no"), False, "appendfsync no"),
        (SAFE, False, ""),
        ((), True, ""),  # a reader is told nothing
    ],
)
def test_what_a_crash_would_lose_is_said_once(
    start: Callable[..., Server], caplog: pytest.LogCaptureFixture, arguments: Any, read_only: bool, text: str
) -> None:
    server = start(*arguments)
    with caplog.at_level(logging.WARNING, "states"):
        for _ in range(2):
            backing = RedisBackingMap(RedisOptions(f"redis://{server.address}"), StateConf(read_only=read_only))
            assert backing.read_sentinel() is None
            backing.close()
    assert len(caplog.records) == bool(text)
    assert not text or re.search(f"{server.address}.*{text}", caplog.text)


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


def all_but_sealed(server: Server, **options: Any) -> tuple[Any, Log, Any]:
    """Return a state with a commit of which only the seal is missing, its log and its number."""
    state, log = state_at(server, **options), Log()
    count(state, log)
    txid = log.next()
    state.begin_commit(txid)
    state.multi_put(KEYS, [2] * len(KEYS))
    return state, log, txid


def evict_one(server: Server) -> None:
    """Have the server evict what its policy lets it, as for want of memory."""
    with redis.Redis(port=server.port) as raw:
        raw.config_set("maxmemory", 1)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            raw.set("one more", "x")
        raw.config_set("maxmemory", "1gb")


@pytest.mark.parametrize("is_set_later", [False, True])
def test_evictions_during_a_commit_are_found_and_stop_the_replay(
    start: Callable[..., Server], is_set_later: bool
) -> None:
    server = start(*([] if is_set_later else ["--maxmemory", "1gb", "--maxmemory-policy", "allkeys-random"]))
    state, log, txid = all_but_sealed(server)  # without maxmemory nothing can be evicted yet
    with redis.Redis(port=server.port) as raw:
        raw.config_set("maxmemory-policy", "allkeys-random")
        assert evict(server, 8 << 20) > 0
        if is_set_later:
            raw.config_set("maxmemory-policy", "noeviction")  # as if nothing had been
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
    state, _, txid = all_but_sealed(server, **options)
    with redis.Redis(port=server.port) as raw:
        if policy.startswith("allkeys"):
            assert evict(server, None) > 0
        else:
            raw.set("another's", "x", ex=1000)
            evict_one(server)
            assert raw.info("stats")["evicted_keys"] == 1
    state.commit(txid)
    state.close()


def test_keys_that_expire_may_be_evicted_by_a_volatile_policy(start: Callable[..., Server]) -> None:
    server = start("--maxmemory", "1gb", "--maxmemory-policy", "volatile-ttl")
    state, _, txid = all_but_sealed(server, ttl_s=90_000)
    evict_one(server)
    with pytest.raises(StateLossDetected, match="40 keys were evicted"):
        state.commit(txid)
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
    server = start("--maxmemory", "1gb", "--maxmemory-policy", policy, *SAFE)
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


LAYOUTS = [{}, {"ttl_s": 90_000}]
SNAPSHOTS = ("--save", "3600 1")
ONE = Sentinel("inc", 1, 5)


@pytest.fixture
def server(start: Callable[..., Server]) -> Server:
    """A Redis that keeps snapshots, and comes back with the last of them."""
    return start(*SNAPSHOTS)


def save(server: Server) -> None:
    with redis.Redis(port=server.port) as raw:
        raw.save()


def empty(server: Server) -> None:
    with redis.Redis(port=server.port) as raw:
        raw.flushall()


def before_move(state: Any, act: Callable[[], object]) -> None:
    """Have `act` called once, after the next read of the sentinel."""
    fence = state.map_state.backing._fence
    read = fence.read

    def read_and_act() -> Sentinel | None:
        fence.read = read
        found: Sentinel | None = read()
        act()
        return found

    fence.read = read_and_act


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_snapshot_from_the_middle_of_the_last_commit_is_not_taken_for_whole(
    server: Server, layout: dict[str, Any]
) -> None:
    state, log = state_at(server, max_keys_per_call=1, **layout), Log()
    count(state, log)
    interrupting(state, partial(save, server))
    count(state, log)
    assert state.multi_get(KEYS) == [2] * len(KEYS)
    restart(server)
    with pytest.raises(StateMismatchError, match="whose last writes are missing"):
        count(state, log)
    state.close()


def test_a_snapshot_of_the_very_end_of_the_last_commit_is_whole(server: Server) -> None:
    state, log = state_at(server), Log()
    count(state, log)
    save(server)
    restart(server)
    count(state, log)
    assert state.multi_get(KEYS) == [2] * len(KEYS)
    state.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_writes_that_a_server_lost_within_the_commit_are_written_again(server: Server, layout: dict[str, Any]) -> None:
    state, log = state_at(server, max_keys_per_call=1, **layout), Log()
    count(state, log)
    interrupting(state, partial(save, server))
    txid = log.next()
    state.begin_commit(txid)
    state.multi_put(KEYS, [2] * len(KEYS))
    restart(server)
    with pytest.raises(BackendError, match="move the sentinel of .* lost writes of this very commit") as caught:
        state.commit(txid)
    assert caught.value.retryable
    log.fail()
    count(state, log)
    assert state.multi_get(KEYS) == [2] * len(KEYS)
    state.close()


def test_writes_that_a_server_lost_between_two_calls_of_a_put_are_written_again(server: Server) -> None:
    backing = map_at(server)
    begun = ONE._replace(sealed=False)
    backing.move_sentinel(begun)
    backing.multi_put(KEYS[:5], [b"kept"] * 5)
    save(server)
    with pytest.raises(BackendError, match="write again of .* lost writes of this very commit"):
        backing.multi_put(Interrupted(KEYS, 20, partial(restart, server)), [b"value"] * len(KEYS))
    backing.read_sentinel()
    backing.move_sentinel(begun._replace(attempt=6))
    backing.multi_put(KEYS, [b"value"] * len(KEYS))
    backing.move_sentinel(ONE._replace(attempt=6))
    assert backing.multi_get(KEYS) == [b"value"] * len(KEYS)
    backing.close()


def test_a_server_that_came_back_with_the_commit_before_is_a_loss_and_no_takeover(server: Server) -> None:
    state, log = state_at(server, max_keys_per_call=1), Log()
    count(state, log)
    save(server)
    interrupting(state, partial(restart, server))
    with pytest.raises(StateLossDetected, match="rolled back from batch 2 .* to batch 1"):
        count(state, log)
    log.fail()
    count(state, log)
    assert state.multi_get(KEYS) == [2] * len(KEYS)
    state.close()


@pytest.mark.parametrize(
    ("keeps", "said", "then"),
    [((), "is gone", "no commit at all"), (SNAPSHOTS, "rolled back from batch 2 .* to batch 1", "batch 1")],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_server_emptied_or_set_back_between_the_read_and_the_move_is_not_written_to(
    start: Callable[..., Server], layout: dict[str, Any], keeps: tuple[str, ...], said: str, then: str
) -> None:
    server = start(*keeps)
    state, log = state_at(server, **layout), Log()
    count(state, log)
    if keeps:
        save(server)
    count(state, log)
    before_move(state, partial(restart, server))
    with pytest.raises(StateLossDetected, match=said):
        count(state, log)
    with redis.Redis(port=server.port) as raw:
        assert raw.dbsize() == (1 + len(KEYS) if keeps else 0)
    log.fail()
    with pytest.raises(StateMismatchError, match=then):
        count(state, log)
    state.close()


def test_a_move_whose_answer_was_lost_finds_its_own_record_or_a_loss(redis_server: Server) -> None:
    empty(redis_server)
    proxy = Proxy(redis_server.port)
    try:
        backing = map_at(redis_server, url=f"redis://127.0.0.1:{proxy.port}")
        backing.move_sentinel(ONE)
        backing.read_sentinel()
        proxy.arm("reply", lambda: None)
        backing.move_sentinel(ONE._replace(txid=2))
        assert not proxy.disarm()
        assert backing.read_sentinel() == ONE._replace(txid=2)
        proxy.arm("reply", partial(empty, redis_server))
        with pytest.raises(StateLossDetected, match="is gone"):
            backing.move_sentinel(ONE._replace(txid=3))
        assert not proxy.disarm()
        with redis.Redis(port=redis_server.port) as raw:
            assert raw.dbsize() == 0
        backing.close()
    finally:
        proxy.close()
