"""Memcached forgets: every loss is named, and as a cache it says nothing that is not so."""

import logging
import os
import pickle
import random
import socket
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheServerError

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memcached import MemcachedOptions, MemcachedState
from states.memcached.fence import Baseline, BaselineCodec, Health, loss
from states.memcached.key_names import Names
from states.memcached.servers import Servers
from states.memcached.state import MemcachedCache
from tests.harness.commands import until
from tests.harness.proxy import Proxy
from tests.harness.servers import Server
from tests.harness.sqlite_map import SQLiteMap, sqlite_state
from tests.states.memcached.test_memcached import HEALTH, add, commit, flush, new_conf, opened, read, restart
from trident import TridentTopology
from trident.errors import (
    BackendError,
    ConfigError,
    CorruptValueError,
    RewindError,
    StateError,
    StateLossDetected,
    StateMismatchError,
)
from trident.operations import Count
from trident.state import CodecSerializer, Key, Sentinel, SerializedMap, StateConf, StateSpec, StateType, map_state
from trident.state.cached import ReadThroughMap
from trident.state.map_state import MapStateFactory
from trident.testing.backend.schedules import Log

pytestmark = pytest.mark.server

WORDS = [f"word{number}" for number in range(300)]  # on two servers, some are on each


@pytest.fixture
def servers(start_own_memcached: Callable[..., Server]) -> list[Server]:
    """Two servers of their own, with little memory."""
    return [start_own_memcached("-m", "4") for _ in range(2)]


def evict(server: Server) -> None:
    """Write as another user until the server evicts."""
    client = Client(server.address, default_noreply=False)
    for number in count():
        assert client.set(f"foreign-{number}", b"x" * 100_000)
        if client.stats()[b"evictions"]:
            break
    client.close()


LOSSES: dict[str, tuple[Callable[[Server], None], str]] = {
    "restart": (restart, "was restarted"),
    "flush": (flush, "ran flush_all"),
    "eviction": (evict, r"has evicted \d+ items"),
}


def addresses(servers: list[Server]) -> list[str]:
    return [server.address for server in servers]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("takeover", [False, True])
@pytest.mark.parametrize("how", LOSSES)
def test_a_loss_between_batches_or_drivers_is_named_once_and_then_the_store_does_not_match(
    servers: list[Server], how: str, takeover: bool, which: int
) -> None:
    lose, text = LOSSES[how]
    spec, conf, log = MemcachedState.opaque(addresses(servers)), new_conf(), Log()
    state = opened(spec, conf)
    commit(state, log, dict.fromkeys(WORDS, 1))
    lose(servers[which])
    if takeover:
        state = opened(spec, conf)
    else:
        with pytest.raises(StateLossDetected, match=f"partition 0 of state .*{servers[which].address} {text}"):
            state.begin_commit(log.next())
    log.fail(takeover)
    with pytest.raises(StateMismatchError, match=f"no commit at all|lost data: .*{text}"):
        state.begin_commit(log.next())


def test_the_end_of_a_commit_looks_at_the_servers_that_do_not_have_the_sentinel_too(servers: list[Server]) -> None:
    conf, log = new_conf(), Log()
    state = opened(MemcachedState.opaque(addresses(servers)), conf)
    commit(state, log, dict.fromkeys(WORDS, 1))
    state.begin_commit(log.next())
    add(state, dict.fromkeys(WORDS, 1))
    for server in servers:
        client = Client(server.address)
        if client.get(f"tests/{conf.state}!sentinel-0") is None:
            flush(server)
        client.close()
    with pytest.raises(StateLossDetected):
        state.commit(log.next())


@pytest.mark.sample(6)
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("when", ["before the read", "before the write", "before the end"])
@pytest.mark.parametrize("how", LOSSES)
def test_a_loss_in_the_middle_of_a_commit_is_named_before_it_ends(
    servers: list[Server], how: str, when: str, which: int
) -> None:
    lose, text = LOSSES[how]
    spec, conf, log = MemcachedState.opaque(addresses(servers), backoff_s=0.001), new_conf(), Log()
    state = opened(spec, conf)
    commit(state, log, dict.fromkeys(WORDS, 1))
    state.begin_commit(log.next())
    if when == "before the read":
        lose(servers[which])
    else:
        read(state, *WORDS)
        if when == "before the end":
            add(state, dict.fromkeys(WORDS, 1))
        lose(servers[which])

    def go_on() -> None:
        if when != "before the end":
            add(state, dict.fromkeys(WORDS, 1))
        state.commit(log.next())

    with pytest.raises(StateError) as failed:
        go_on()
    if isinstance(failed.value, BackendError):  # the connection had ended: the loss is named at the next attempt
        log.fail()
        with pytest.raises(StateLossDetected, match=f"{text}|no commit"):
            state.begin_commit(log.next())
    else:
        assert isinstance(failed.value, StateLossDetected)
        assert failed.match(f"{servers[which].address} {text}|sentinel is gone")


def test_after_a_loss_the_state_begins_anew(servers: list[Server]) -> None:
    spec, conf, log = MemcachedState.opaque(addresses(servers)), new_conf(), Log()
    state = opened(spec, conf)
    commit(state, log, dict.fromkeys(WORDS, 1))
    restart(servers[0])
    with pytest.raises(StateLossDetected):
        state.begin_commit(log.next())
    state.reset()
    assert read(state, *WORDS) == [None] * len(WORDS)  # also of the server that kept its half
    log = Log()
    for _ in range(2):
        commit(state, log, dict.fromkeys(WORDS, 1))
    assert read(opened(spec, conf), *WORDS) == [2] * len(WORDS)


def test_what_is_left_can_be_adopted(servers: list[Server]) -> None:
    spec, conf, log = MemcachedState.opaque(addresses(servers)), new_conf(), Log()
    commit(opened(spec, conf), log, dict.fromkeys(WORDS, 1))
    restart(servers[1])
    state = opened(spec, conf)
    state.move_sentinel(Sentinel("adopted", 1, 5), force=True)
    assert state.read_sentinel() == Sentinel("adopted", 1, 5)
    assert 0 < read(state, *WORDS).count(None) < len(WORDS)


def test_evictions_may_be_warned_of(servers: list[Server], caplog: pytest.LogCaptureFixture) -> None:
    spec, conf, log = MemcachedState.opaque(servers[0].address, allow_eviction=True), new_conf(), Log()
    state = opened(spec, conf)
    commit(state, log, {"a": 1})
    evict(servers[0])
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        commit(state, log, {"a": 1})
        commit(state, log, {"a": 1})
        commit(opened(spec, conf), log, {"a": 1})
    warnings = [message for message in caplog.messages if "begins again" in message]
    assert len(warnings) == 1
    assert f"server {servers[0].address} has evicted" in warnings[0]
    assert read(state, "a") in ([4], [3], [None])  # whether it was this key that was evicted is the server's choice
    restart(servers[0])
    with pytest.raises(StateLossDetected, match="was restarted"):
        commit(state, log, {"a": 1})


def test_another_list_of_servers_is_refused(servers: list[Server]) -> None:
    conf, log = new_conf(), Log()
    state = opened(MemcachedState.opaque(addresses(servers)), conf)
    commit(state, log, dict.fromkeys(WORDS, 1))
    with pytest.raises(StateMismatchError, match="written on the servers .*, and this state names|no commit at all"):
        opened(MemcachedState.opaque(servers[0].address), conf).begin_commit(log.next())
    again = opened(MemcachedState.opaque(addresses(servers)[::-1]), conf)
    commit(again, log, dict.fromkeys(WORDS, 1))
    assert read(again, *WORDS) == [2] * len(WORDS)


def test_the_sentinel_of_another_partition_tells_as_well(servers: list[Server]) -> None:
    """A partition that nobody touched for long compares with the day when it was touched."""
    spec, conf, log = MemcachedState.opaque(servers[0].address), new_conf(), Log()
    states = [opened(spec, conf, partition, 2) for partition in range(2)]
    for partition, state in enumerate(states):
        txid = log.next(partition)
        state.begin_commit(txid)
        add(state, {f"{partition}": 1})
        state.commit(txid)
    log.record([0, 1])
    flush(servers[0])
    for partition, state in enumerate(states):
        with pytest.raises(StateLossDetected, match="flush_all"):
            state.begin_commit(log.next(partition))


def test_a_topology_finds_the_loss_at_its_start_and_may_begin_anew(servers: list[Server], tmp_path: Path) -> None:
    server = servers[0]

    def run(*words: str, **settings: Any) -> list[Any]:
        topology = TridentTopology("lossy")
        stream = topology.new_stream("words", FixedBatchSpout("word: string", 1, *[(word,) for word in words]))
        state = MemcachedState.opaque(server.address, num_partitions=2)
        stream.group_by("word").persistent_aggregate(state, Count(), "count")
        with topology.start(engine="in_process", log_dir=tmp_path / "log", **settings) as running:
            running.process_all_available()
            return list(running.state("count").multi_get(["a", "b", "c"]))

    assert run("a", "b", "c") == [1, 1, 1]
    restart(server)
    with pytest.raises(StateMismatchError, match="no commit at all"):
        run("a", "b", "c", "a")
    assert run("a", "b", "c", "a", state_recovery="discard_totals") == [1, None, None]
    flush(server)
    assert run("a", "b", "c", "a", "b", state_recovery="discard_totals") == [None, 1, None]


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@pytest.mark.parametrize("discards", [True, False])
def test_what_other_servers_kept_of_a_lost_state_does_not_count(
    servers: list[Server], kind: str, discards: bool, tmp_path: Path
) -> None:
    homes = Servers(MemcachedOptions(tuple(addresses(servers))))
    at_first = (
        name for name in map("lost{}".format, count()) if homes.of(Names(name).sentinel(0)) is homes.connections[0]
    )
    prefix = next(at_first)

    def run(log: str, *before: str, **settings: Any) -> set[int]:
        topology = TridentTopology("lossy")
        words = [(word,) for word in [*before, *WORDS]]
        stream = topology.new_stream("words", FixedBatchSpout("word: string", 100, *words))
        state = getattr(MemcachedState, kind)(addresses(servers), prefix=prefix, num_partitions=1)
        stream.group_by("word").persistent_aggregate(state, Count(), "count")
        with topology.start(engine="in_process", log_dir=tmp_path / log, **settings) as running:
            running.process_all_available()
            return set(running.state("count").multi_get(WORDS))

    assert run("log") == {1}
    restart(servers[0])
    with pytest.raises(StateMismatchError, match="no commit at all"):
        run("log")
    # the batches are other ones: those of a word have a txid above the one that its server has kept
    more = {"state_recovery": "discard_totals"} if discards else {}
    assert run("new log", *["other"] * 400, **more) == {1}


def test_servers_all_empty_are_rewound_and_some_empty_are_refused(servers: list[Server], tmp_path: Path) -> None:
    def run(**settings: Any) -> set[Any]:
        topology = TridentTopology("rewound")
        rows = [(word,) for word in [*WORDS, *WORDS]]
        stream = topology.new_stream("words", FixedBatchSpout("word: string", len(WORDS), *rows))
        stream.group_by("word").persistent_aggregate(MemcachedState.opaque(addresses(servers)), Count(), "count")
        with topology.start(engine="in_process", log_dir=tmp_path / "log", history="7d", **settings) as running:
            running.process_all_available()
            return set(running.state("count").multi_get(WORDS))

    assert run() == {2}
    for server in servers:
        restart(server)
    assert run(state_recovery="rewind") == {2}
    restart(servers[0])
    client = Client(servers[1].address)
    has_sentinel = client.get("rewound/count!sentinel-0") is not None
    client.close()
    if has_sentinel:
        with pytest.raises(RewindError, match=r"lost data: .* was restarted .* nothing says which values are gone"):
            run(state_recovery="rewind")
        restart(servers[1])
    assert run(state_recovery="rewind") == {2}
    assert run() == {2}


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (HEALTH, None),
        (HEALTH._replace(pid=11, epoch=0, evictions=0), "server a was restarted (process 10, now 11)"),
        (HEALTH._replace(started=1001), "server a was restarted (process 10, now 10)"),
        (HEALTH._replace(flushes=3, epoch=0), "server a ran flush_all"),
        (HEALTH._replace(epoch=0), "the record of the state on server a is gone"),
        (HEALTH._replace(epoch=131072), "the record of the state on server a was replaced"),
        (HEALTH._replace(evictions=7),
         "server a has evicted 2 items, its own or others', since the state began there"),
    ],
)  # fmt: skip
def test_what_tells_a_loss(now: Health, text: str | None) -> None:
    assert loss({"a": HEALTH}, {"a": now}) == text


def test_losses_of_several_servers_are_all_named() -> None:
    now: Baseline = {"a": HEALTH._replace(flushes=3), "b": HEALTH._replace(pid=1)}
    assert loss({"a": HEALTH, "b": HEALTH}, now) == (
        "server a ran flush_all; server b was restarted (process 10, now 1)"
    )


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"sentinel":[1],"servers":{}}', b"\xff",
                                  b'{"sentinel":["a",1,2,"p",true,""],"servers":{"a":[1]}}'])  # fmt: skip
def test_a_record_of_another_program_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptValueError, match="read the sentinel of state p: .* another program wrote it"):
        BaselineCodec().decode(data, "state p")


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
