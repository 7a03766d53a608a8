"""What a factory under test opens: the forms in which users give one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trident.errors import ConfigError, FencedError
from trident.state.backing_map import BackingMap, backing_map
from trident.state.interfaces import (
    StateConf,
    StateSpec,
    is_factory,
)
from trident.state.map_state import MapStateFactory
from trident.state.snapshottable import committed_map


def open_backing_map(factory: Any, conf: StateConf, partition: int, partitions: int) -> BackingMap:
    """Open the backing map that a factory of any form stands for."""
    if isinstance(factory, MapStateFactory):
        return backing_map(factory.backing_map_factory(conf, partition, partitions))
    if not is_factory(factory):
        return backing_map(factory(conf, partition, partitions))
    state = factory.make_state(conf, partition, partitions)
    backing = backing_of(state)
    if backing is None:
        raise ConfigError(
            f"{type(factory).__name__} makes a {type(state).__name__}, which is no map over a backing map; the suite "
            "checks what map_state and map_for make"
        )
    return backing


def backing_of(state: Any) -> BackingMap | None:
    """Return the backing map under a state, None if it is no map over one."""
    found = committed_map(state)
    return None if found is None else found.backing


def opened_factory(factory: Any) -> Any:
    """Return the `BackingMapFactory` or `StateFactory` that was given, in whatever form."""
    if supplies(factory):
        factory = factory()
    inner = factory.factory if isinstance(factory, StateSpec) else factory
    if not is_factory(inner) and not callable(inner):
        raise ConfigError(
            f"a {type(inner).__name__} is no factory; give a function (conf, partition_index, num_partitions) -> "
            "IBackingMap, a StateSpec, or a function without arguments that returns one of these"
        )
    return inner


def supplies(factory: Any) -> bool:
    """Whether the factory is a function without arguments that returns the store."""
    is_instance = isinstance(factory, StateSpec) or is_factory(factory)
    return not is_instance and _needs_nothing(factory)


def _needs_nothing(factory: Any) -> bool:
    if not callable(factory):
        return False
    try:
        inspect.signature(factory).bind()
    except (TypeError, ValueError):
        return False
    return True


@contextmanager
def forgiving() -> Iterator[None]:
    """Let a store that is gone fail to close."""
    try:
        yield
    except FencedError:
        return
    except Exception:  # noqa: BLE001 - a user's store; the verdict stands, and the next case must run
        return
