"""What the tests of faults of the Redis state share: commits that count, and acts in the middle of them."""

from collections.abc import Callable, Sequence
from typing import Any

from states.redis import RedisBackingMap, RedisOptions, RedisState
from tests.harness.servers import Server
from trident.state.interfaces import Key, StateConf
from trident.testing.backend.schedules import Log

CONF = StateConf("words", "counts")
KEYS: list[Key] = [(f"word {number}",) for number in range(40)]


class Interrupted(list[Key]):
    """Keys that act once, when the call is made that has the key at `place`; calls of one key each."""

    def __init__(self, keys: Sequence[Key], place: int, act: Callable[[], object]) -> None:
        super().__init__(keys)
        self._place, self._act = place, act
        self.acted = False

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice) and at.start == self._place and not self.acted:
            self.acted = True
            self._act()
        return super().__getitem__(at)


def map_at(server: Server, **options: Any) -> RedisBackingMap:
    given = {"max_keys_per_call": 1, "backoff_s": 0.01, **options}
    return RedisBackingMap(RedisOptions(**{"url": f"redis://{server.address}", **given}), CONF)


def state_at(server: Server, conf: StateConf = CONF, **options: Any) -> Any:
    spec = RedisState.opaque(f"redis://{server.address}", backoff_s=0.01, **options)
    return spec.factory.make_state(conf, 0, 1)


def count(state: Any, log: Log, keys: Sequence[Key] = KEYS) -> None:
    txid = log.next()
    state.begin_commit(txid)
    values = state.multi_get(keys)
    state.multi_put(keys, [(value or 0) + 1 for value in values])
    state.commit(txid)
    log.record()


def restart(server: Server) -> None:
    server.kill()
    server.start()


def interrupting(state: Any, act: Callable[[], object]) -> None:
    """Have `act` called in the middle of the next put of the state."""
    backing = state.map_state.backing
    put = backing.multi_put

    def put_with(keys: Sequence[Key], values: Sequence[Any]) -> None:
        backing.multi_put = put
        backing._named = ([], [])  # the names that the read made are made again, one call at a time
        interrupted = Interrupted(keys, len(keys) // 2, act)
        try:
            put(interrupted, values)
        finally:
            assert interrupted.acted

    backing.multi_put = put_with
