"""Random batches, crashes, takeovers and replays, as the suite for stores has them: which kinds are exact, which are not."""

from collections.abc import Callable
from typing import Any

import pytest

from states.memory import MemoryMapState
from tests.harness.crashing_stores import DictMap, LateMap
from trident.state import CodecSerializer, IBackingMap, Key, OpaqueMap, SerializedMap, StateType, Txid
from trident.testing import Violation
from trident.testing.backend.schedules import Schedule
from trident.testing.backend.store_under_test import Store

SCHEDULES = 40
OPAQUE = StateType.OPAQUE
PAIRINGS = [(StateType.TRANSACTIONAL, False), (OPAQUE, False), (OPAQUE, True)]


def over_dicts(store: Callable[[dict[Key, Any]], IBackingMap[Any]]) -> Any:
    entries: dict[str, dict[Key, Any]] = {}
    return lambda conf, partition, partitions: store(entries.setdefault(f"{conf.prefix} {partition}", {}))


STORES: dict[str, Callable[[StateType], Any]] = {
    "memory": lambda kind: MemoryMapState(),
    "two methods": lambda kind: over_dicts(DictMap),
    "all at the end": lambda kind: over_dicts(LateMap),
    "in columns": lambda kind: over_dicts(lambda entries: SerializedMap(DictMap(entries), CodecSerializer(kind))),
}


def schedule_of(store: str, kind: StateType, changes: bool, seed: object, made: type[Schedule] = Schedule) -> Schedule:
    """Return a schedule; caches and the size of requests are drawn from the seed."""
    schedule = made(Store(STORES[store](kind), kind), seed)
    schedule.changes = changes
    return schedule


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(("kind", "changing"), PAIRINGS, ids=["tx-tx", "tx-opaque", "opaque-opaque"])
@pytest.mark.parametrize(
    "numbers", [range(3 * SCHEDULES), pytest.param(range(SCHEDULES, 400), marks=pytest.mark.soak)], ids=["few", "many"]
)
def test_every_exact_pairing_ends_as_if_each_batch_came_once(
    kind: StateType, changing: bool, store: str, numbers: range
) -> None:
    crashes = 0
    for number in numbers:
        schedule = schedule_of(store, kind, changing, f"{kind.value} {changing} {store} {number}")
        schedule.run()
        crashes += schedule.log.attempt > 1 << 20
    assert crashes > len(numbers) // 2  # the schedules do crash


class StormOpaqueMap(OpaqueMap):
    """Storm's three fields: it knows no attempts, so every write of an earlier txid counts as committed."""

    def begin_commit(self, txid: int) -> None:
        super().begin_commit(Txid(int(txid)))

    def commit(self, txid: int) -> None:
        super().commit(int(txid))


class StormSchedule(Schedule):
    def state_over(self, backing: IBackingMap[Any], part: int) -> Any:
        return StormOpaqueMap(backing, "state", part)


def wrong(kind: StateType, changing: bool, made: type[Schedule] = Schedule) -> int:
    """Return how many schedules end otherwise than if each batch had come once."""
    found = 0
    for number in range(SCHEDULES):
        try:
            schedule_of("memory", kind, changing, number, made).run()
        except Violation:
            found += 1
    return found


def test_three_fields_go_wrong_on_the_same_schedules() -> None:
    assert wrong(OPAQUE, True, StormSchedule) > SCHEDULES // 2


def test_a_transactional_state_goes_wrong_where_replays_change() -> None:
    assert wrong(StateType.TRANSACTIONAL, True) > SCHEDULES // 2


def test_a_non_transactional_state_goes_wrong_where_batches_are_replayed() -> None:
    assert wrong(StateType.NON_TRANSACTIONAL, False) > SCHEDULES // 2
