"""Memcached before a durable state: faster reads, and never a value that the durable state does not have."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from states.delta import DeltaState
from states.memcached import MemcachedOptions, MemcachedState
from states.memcached.state import MemcachedCache
from tests.harness.proxy import Proxy
from tests.harness.servers import Server, start_memcached
from tests.harness.sqlite_map import SQLiteMap, sqlite_state
from tests.states.memcached.test_memcached import add, commit, new_conf, opened, read
from trident.errors import ConfigError
from trident.state import CodecSerializer, Key, OpaqueValue, SerializedMap, StateConf, StateSpec, StateType, map_state
from trident.state.cached import ReadThroughMap
from trident.state.map_state import MapStateFactory
from trident.testing.backend.schedules import Log

pytestmark = pytest.mark.server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = start_memcached(tmp_path, "-m", "4")
    yield server
    server.kill()


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


@pytest.mark.long
def test_evictions_do_no_harm(server: Server, durable: StateSpec) -> None:
    state, log = opened(MemcachedState.cache_for(durable, server.address), new_conf()), Log()
    words = [f"{number}" + "x" * 3000 for number in range(3000)]  # 9 MB do not fit in 4 MB
    for _ in range(2):
        commit(state, log, dict.fromkeys(words, 1))
    backing = state.map_state.backing
    known = backing.cache.get(backing._space, [(word,) for word in words])
    assert 0 < known.count(None) < len(words)
    assert known[-1] == (OpaqueValue(2, log.attempt, 1, 2),)
    commit(state, log, dict.fromkeys(words, 1))
    assert read(state, *words) == [3] * len(words)


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
