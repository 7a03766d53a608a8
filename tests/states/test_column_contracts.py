"""The contracts of a store, run on states of declared fields, where these are columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from states.cassandra import CassandraState
from states.postgres import PostgresState
from tests.stores.catalog import STORES
from trident.state import StateConf
from trident.testing import FencedMapContract, MapStateContract, SnapshottableContract

pytestmark = pytest.mark.server


@dataclass(frozen=True)
class _Declared:
    """Opens each state as one of declared fields."""

    factory: Any
    value: str

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> Any:
        declared = replace(conf, key_fields=(("key", "string"),), value_type=self.value)
        return self.factory.make_state(declared, partition_index, num_partitions)


@pytest.fixture(autouse=True, params=["postgres", "cassandra"])
def _declared(request: pytest.FixtureRequest) -> None:
    port = request.getfixturevalue(f"{request.param}_server").port
    if request.param == "postgres":
        spec = PostgresState.opaque(f"postgresql://trident@127.0.0.1:{port}/postgres")
    else:
        spec = CassandraState.opaque("127.0.0.1", port=port, keyspace="tests", replication=1, layout="columns")
    request.instance.factory = _Declared(spec.factory, request.instance.value)
    request.instance.limits = STORES[request.param].limits


@pytest.mark.long
class TestFencedMap(FencedMapContract):
    value = "bigint"
    # Its keys, and what the ones below put, are of several types.
    test_the_sentinel_is_no_key = None  # type: ignore[assignment]


@pytest.mark.long
class TestMapState(MapStateContract):
    value = "array<bigint>"
    test_many_keys_are_updated_at_once = test_none_is_a_value = None  # type: ignore[assignment]


class TestSnapshottable(SnapshottableContract):
    value = "array<bigint>"
    test_it_can_be_replaced = None  # type: ignore[assignment]
