"""Memcached forgets: every loss is named, at the latest when the batch commits, and no value is silently wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pymemcache.client.base import Client

from spouts import FixedBatchSpout
from states.memcached import MemcachedState
from states.memcached.fence import Baseline, BaselineCodec, Health, loss
from states.memcached.key_names import Names
from states.memcached.servers import MemcachedOptions, Servers
from tests.harness.servers import Server
from tests.states.memcached.test_memcached import HEALTH, add, commit, flush, new_conf, opened, read, restart
from trident import TridentTopology
from trident.errors import (
    BackendError,
    CorruptValueError,
    RewindError,
    StateError,
    StateLossDetected,
    StateMismatchError,
)
from trident.operations import Count
from trident.state import Sentinel
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


# ---- the comparison --------------------------------------------------------------------------------------------------


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
