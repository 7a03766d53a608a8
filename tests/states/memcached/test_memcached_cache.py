"""Memcached drops items in more ways than one: each is counted, and as a cache it says nothing that is not so."""

from __future__ import annotations

import logging
import os
import pickle
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheServerError

from states.delta import DeltaState
from states.memcached import MemcachedOptions, MemcachedState
from states.memcached.fence import Health, loss
from states.memcached.state import MemcachedCache
from tests.harness.commands import until
from tests.harness.proxy import Proxy
from tests.harness.servers import Server
from tests.harness.sqlite_map import SQLiteMap, sqlite_state
from tests.states.memcached.test_memcached import HEALTH, add, commit, new_conf, opened, read
from tests.states.memcached.test_memcached_losses import evict
from trident.errors import BackendError, ConfigError, StateLossDetected
from trident.state import CodecSerializer, Key, SerializedMap, StateConf, StateSpec, StateType, map_state
from trident.state.cached import ReadThroughMap
from trident.state.map_state import MapStateFactory
from trident.testing.backend.schedules import Log

pytestmark = pytest.mark.server


@pytest.fixture
def server(start_own_memcached: Callable[..., Server]) -> Server:
    return start_own_memcached("-m", "4")


@pytest.fixture
def durable(tmp_path: Path) -> StateSpec:
    return sqlite_state(str(tmp_path / "durable.db"))


def cache(address: str, conf: StateConf | None = None, **options: Any) -> MemcachedCache:
    return MemcachedCache(
        MemcachedOptions(servers=(address,), **options), conf or new_conf(), StateType.NON_TRANSACTIONAL
    )


def test_entries_come_back_by_space(memcached_server: Server) -> None:
    shelf = cache(memcached_server.address, max_keys_per_call=3)
    keys: list[Key] = [("a",), ("b c",), ("k" * 600,), (1,), ("absent",), ("none",), ("é" * 200,)]
    shelf.put("one", keys[:5], ["A", b"\r\nEND\r\n", {"x": (1,)}, -1.5, None])
    shelf.put("two", keys[:1], ["other"])
    assert shelf.get("one", keys) == [("A",), (b"\r\nEND\r\n",), ({"x": (1,)},), (-1.5,), (None,), None, None]
    assert shelf.get("two", keys[:2]) == [("other",), None]
    shelf.close()


def test_an_entry_that_there_is_no_room_for_takes_the_old_one_with_it(memcached_server: Server) -> None:
    shelf = cache(memcached_server.address, max_bytes_per_call=100)
    shelf.put("s", [("big",), ("small",)], ["old", "old"])
    shelf.put("s", [("big",), ("small",)], ["x" * (2 << 20), "new"])
    assert shelf.get("s", [("big",), ("small",)]) == [None, ("new",)]


def test_reads_of_a_commit_come_from_the_cache(server: Server, durable: StateSpec) -> None:
    spec, log, conf = MemcachedState.cache_for(durable, server.address), Log(), new_conf()
    state = opened(spec, conf)
    commit(state, log, {"a": 1, "b": 1})
    backing = state.map_state.backing
    assert isinstance(backing, ReadThroughMap)
    reads: list[Any] = []
    stored = backing.durable.multi_get
    backing.durable.multi_get = lambda keys: reads.append(list(keys)) or stored(keys)  # type: ignore[func-returns-value, method-assign]
    commit(state, log, {"a": 1, "c": 1})
    assert [keys for keys in reads if len(keys[0]) == 1] == [[("c",)]]
    assert read(opened(durable, conf), "a", "b", "c") == [2, 1, 1]


def test_a_spec_is_picklable_and_readers_read_the_durable_state(server: Server, durable: StateSpec) -> None:
    spec = MemcachedState.cache_for(durable, [server.address], ttl_s=60, allow_short_ttl=True)
    assert pickle.loads(pickle.dumps(spec)) == spec
    conf = new_conf()
    commit(opened(spec, conf), Log(), {"a": 3})
    server.kill()
    reader = opened(spec, StateConf(conf.topology, conf.state, read_only=True))
    assert read(reader, "a") == [3]


@pytest.mark.parametrize("seed", range(3))
def test_losses_takeovers_and_lost_replies_end_exact(server: Server, durable: StateSpec, seed: int) -> None:
    chance, proxy = random.Random(seed), Proxy(server.port)
    spec, conf, log = MemcachedState.cache_for(durable, f"127.0.0.1:{proxy.port}", backoff_s=0.0), new_conf(), Log()
    writers, model = [opened(spec, conf), opened(spec, conf)], dict.fromkeys("abcdefgh", 0)
    for _ in range(40):
        counts = {word: chance.randint(1, 9) for word in chance.sample(list(model), 4)}
        mischief = chance.randint(0, 5)
        if mischief == 0:
            server.kill()
            server.start()
        elif mischief == 1:
            proxy.arm(chance.choice(["reply", "half request"]), lambda: None)
        elif mischief == 2:
            writers[chance.randrange(2)] = opened(spec, conf)
        if mischief == 3:  # a failed attempt, left in the middle
            failed = chance.choice(writers)
            failed.begin_commit(log.next())
            add(failed, dict.fromkeys(chance.sample(list(model), 3), 1000))
            log.fail()
        commit(chance.choice(writers), log, counts)
        proxy.disarm()
        for word, number in counts.items():
            model[word] += number
        keys = [(word,) for word in model]
        for state in writers:
            assert [value or 0 for value in state.multi_get_at(keys, log.snapshot())] == list(model.values())
    proxy.close()


def test_a_dead_cache_does_not_stop_a_commit(
    server: Server, durable: StateSpec, caplog: pytest.LogCaptureFixture
) -> None:
    state, log = opened(MemcachedState.cache_for(durable, server.address, backoff_s=0.0), new_conf()), Log()
    commit(state, log, {"a": 1})
    server.kill()
    commit(state, log, {"a": 1})
    server.start()
    commit(state, log, {"a": 1})
    assert read(state, "a") == [3]
    assert len([message for message in caplog.messages if "not used until the next commit" in message]) == 1


@pytest.mark.parametrize("kind", list(StateType))
def test_any_kind_may_have_a_cache(server: Server, tmp_path: Path, kind: StateType) -> None:
    def backing(conf: StateConf, partition: int, partitions: int) -> Any:
        return SerializedMap(SQLiteMap(str(tmp_path / "kinds.db"), conf.prefix), CodecSerializer(kind))

    state, log = opened(MemcachedState.cache_for(map_state(backing, kind), server.address), new_conf()), Log()
    for _ in range(3):
        commit(state, log, {"a": 1})
    assert read(state, "a") == [3]


def test_what_keeps_its_entries_in_the_process_is_refused(tmp_path: Path, durable: StateSpec) -> None:
    assert isinstance(durable.factory, MapStateFactory)
    for spec in (DeltaState.opaque(tmp_path), map_state(durable.factory.backing_map_factory, cache=10)):
        with pytest.raises(ConfigError, match="put Memcached before .* has cache=0"):
            MemcachedState.cache_for(spec, "a:1")


DISK = ("-m", "64", "-M", "-o")
QUICK = "ext_item_age=0,ext_max_sleep=10000"


def disk(work: Path, *more: str, megabytes: int = 8) -> str:
    return ",".join([*more, QUICK, "ext_page_size=2,ext_wbuf_size=2", f"ext_path={work / 'disk'}:{megabytes}m"])


def put(state: Any, log: Log, first: int, many: int) -> None:
    txid = log.next()
    state.begin_commit(txid)
    state.multi_put([(f"word{number}",) for number in range(first, first + many)], ["x" * 1000] * many)
    state.commit(txid)
    log.record()


@pytest.mark.parametrize(
    ("more", "megabytes"), [((), 8), (("ext_drop_unread", "ext_compact_under=3", "ext_drop_under=3"), 16)]
)
def test_what_is_dropped_from_the_external_storage_fails_a_batch(
    start_own_memcached: Callable[..., Server], tmp_path: Path, more: tuple[str, ...], megabytes: int
) -> None:
    server = start_own_memcached(*DISK, disk(tmp_path, *more, megabytes=megabytes))
    state, log = opened(MemcachedState.opaque(server.address), new_conf()), Log()

    def batches() -> None:
        for number in range(2000):  # the server moves values to the disk beside them, sooner or later
            put(state, log, number % 40 * 500, 500)

    with pytest.raises(StateLossDetected, match=r"has evicted \d+ items"):
        batches()


def test_what_the_external_storage_cannot_give_back_fails_the_batch_that_asks_for_it(
    start_own_memcached: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_own_memcached(*DISK, disk(tmp_path, megabytes=16))
    state, log = opened(MemcachedState.opaque(server.address), new_conf()), Log()
    for number in range(5):
        put(state, log, number * 1000, 1000)
    until(lambda: (tmp_path / "disk").stat().st_blocks * 512 > 2 << 20, "half of the values are on the disk")
    os.truncate(tmp_path / "disk", 0)  # as a disk does that is broken, or was full
    with pytest.raises(StateLossDetected, match=r"has evicted \d+ items"):
        put(state, log, 0, 5000)


def test_what_is_dropped_while_a_page_of_memory_moves_fails_the_batch(
    start_own_memcached: Callable[..., Server],
) -> None:
    server = start_own_memcached("-m", "8", "-M")
    state, log = opened(MemcachedState.opaque(server.address, timeout_s=0.3), new_conf()), Log()
    commit(state, log, {"word": 1})
    client = Client(server.address, default_noreply=False)
    for number in range(1000):  # fills the memory with items of one class
        try:
            client.set(f"foreign-{number}", b"x" * 20_000)
        except MemcacheServerError:
            break
    (source,) = {int(name.split(b":")[0]) for name, size in client.stats("slabs").items()
                 if name.endswith(b":chunk_size") and 20_000 < size < 26_000}  # fmt: skip
    asked = client.stats()[b"cmd_get"]
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect(("127.0.0.1", server.port))
        names = [b"foreign-%d" % n for n in range(0, number, 2)[::-1]]
        # It takes no answer. That is more than the 4 MB that the kernel keeps, so every second item of the first page
        # stays in use.
        stuck.sendall(b"get %b\r\n" % b" ".join(3 * names))
        before, alike = asked, 0
        while alike < 50:  # until the server, which has one thread, waits for its client
            now = client.stats()[b"cmd_get"]
            before, alike = now, alike + 1 if now == before != asked else 0
        assert client.raw_command(f"slabs reassign {source} 1") == b"OK"
        until(lambda: client.stats()[b"slab_reassign_running"], "the page is being moved")
        with pytest.raises((BackendError, StateLossDetected), match="moving one page|has evicted") as failed:
            commit(state, log, {"word": 1})
        assert isinstance(failed.value, BackendError)
    client.close()
    log.fail()
    with pytest.raises(StateLossDetected, match=r"has evicted \d+ items"):
        state.begin_commit(log.next())


def test_counters_that_were_reset_hide_nothing(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    state = opened(MemcachedState.opaque(server.address), new_conf())
    lenient = opened(MemcachedState.opaque(server.address, allow_eviction=True), new_conf())
    commit(state, log, {"a": 1}, record=False)
    commit(lenient, log, {"a": 1})
    evict(server)
    client = Client(server.address)
    client.raw_command("stats reset")
    client.close()
    with pytest.raises(StateLossDetected, match=r"counters of server .* were reset \(stats reset\)"):
        state.begin_commit(log.next())
    caplog.clear()
    commit(lenient, log, {"b": 1})
    commit(lenient, log, {"b": 1})
    assert [message for message in caplog.messages if "were reset" in message] == caplog.messages
    assert len(caplog.messages) == 1


def test_servers_that_drop_items_are_warned_of(
    start_own_memcached: Callable[..., Server], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_own_memcached(*DISK, disk(tmp_path) + ",tail_repair_time=3600")
    with caplog.at_level(logging.WARNING):
        commit(opened(MemcachedState.opaque(server.address), new_conf()), Log(), {"a": 1})
    storage, repair = caplog.messages
    assert "drops items when its external storage (ext_path) is full, also with -M" in storage
    assert "tail_repair_time" in repair


# ---- the comparison --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flushes", [2, 0])
def test_a_reset_of_the_counters_is_told_as_such(flushes: int) -> None:
    before, now = HEALTH._replace(sent=1000), HEALTH._replace(flushes=flushes, evictions=0, sent=999)
    assert loss({"a": before}, {"a": now}) == (
        "the counters of server a were reset (stats reset), so what it has evicted is unknown"
    )
    assert loss({"a": before}, {"a": now}, evictions=False) is None
    assert loss({"a": before}, {"a": before._replace(sent=2000)}) is None


@pytest.mark.parametrize(
    "counter",
    ["evictions", "slab_reassign_evictions_nomem", "slab_reassign_busy_deletes", "extstore_objects_evicted",
     "extstore_compact_skipped", "extstore_compact_lost", "miss_from_extstore"],
)  # fmt: skip
def test_every_counter_of_dropped_items_counts(counter: str) -> None:
    statistics = {b"pid": 1, b"time": 50, b"uptime": 20, b"bytes_written": 7, counter.encode(): 3}
    assert Health.of(0, statistics) == Health(0, 1, 30, 0, 3, 7)
