"""The Redis state on a server that comes back without the latest of its data, or with none, at any point of a commit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from tests.harness.proxy import Proxy
from tests.harness.servers import Server
from tests.states.redis.redis_states import KEYS, Interrupted, count, interrupting, map_at, restart, state_at
from trident.errors import BackendError, StateLossDetected, StateMismatchError
from trident.state.txid import Sentinel
from trident.testing.backend.schedules import Log

pytestmark = pytest.mark.server

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


# ---- after a commit --------------------------------------------------------------------------------------------------


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


# ---- within a commit, and the connection is made anew ----------------------------------------------------------------


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


# ---- between the read of the sentinel and its move -------------------------------------------------------------------


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
