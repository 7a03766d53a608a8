"""The contracts of a store (`trident.testing`), as a user's tests run them, on every store that has a server or files."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from states.redis import RedisState
from tests.states.redis.redis_cluster import Cluster, cluster_in
from tests.stores.catalog import STORES, Home
from trident.state import StateConf
from trident.testing import BackingMapContract, FencedMapContract, MapStateContract, SnapshottableContract

FORMS = {"redis-cluster": "redis-volatile", "redis-fields": "redis-volatile"}  # forms that are no row of the catalog


def on(*names: str, long: tuple[str, ...] = ()) -> Any:
    """Run a contract on these stores, and on others if long tests run as well."""

    def case(name: str, *marks: Any) -> Any:
        served = STORES[FORMS.get(name, name)].server is not None
        return pytest.param(name, marks=[*marks, pytest.mark.server if served else pytest.mark.slow])

    cases = [*map(case, names), *(case(name, pytest.mark.long) for name in long)]
    return pytest.mark.parametrize("opened", cases, indirect=True)


@dataclass(frozen=True)
class _Declared:
    """Opens each state as one of declared fields, which become columns or the fields of a hash."""

    factory: Any
    value: str

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> Any:
        declared = replace(conf, key_fields=(("key", "string"),), value_type=self.value)
        return self.factory.make_state(declared, partition_index, num_partitions)


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Redis cluster of one node, which checks slots as every cluster does."""
    with cluster_in(lambda: tmp_path_factory.mktemp("node"), 1) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def opened(request: pytest.FixtureRequest, home_of: Callable[[str], Home]) -> None:
    name, test = request.param, request.instance
    home = home_of(FORMS.get(name, name))
    if name.startswith("cassandra"):  # its keyspace is made by a writer, and some tests begin with a reader
        for each in home.open(home.fresh_name("first")):
            each.close()
    factory = home.empty()
    if name == "redis-cluster":
        factory = RedisState.opaque(request.getfixturevalue("one_node").url, cluster_buckets=4)
    elif name == "redis-fields":
        factory = RedisState.opaque(f"redis://{home.server.address}", layout="fields")
    value = getattr(test, "value", None)
    test.factory = _Declared(getattr(factory, "factory", factory), value) if value else factory
    test.limits = home.store.limits


@on("redis", "memcached", "postgres", "cassandra", "delta", long=("redis-cluster",))
class TestBackingMap(BackingMapContract):
    pass


@on("redis", "memcached", "postgres", "cassandra", "delta", long=("redis-cluster",))
class TestFencedMap(FencedMapContract):
    pass


@on("redis", "memcached", "postgres", "cassandra", "delta")
class TestMapState(MapStateContract):
    pass


@on("postgres", "cassandra", "delta")
class TestSnapshottable(SnapshottableContract):
    pass


@on(long=("redis-fields", "postgres", "cassandra-columns"))
class TestDeclaredFencedMap(FencedMapContract):
    value = "bigint"
    # Its keys, and what the ones below put, are of several types.
    test_the_sentinel_is_no_key = None  # type: ignore[assignment]


@on(long=("redis-fields", "postgres", "cassandra-columns"))
class TestDeclaredMapState(MapStateContract):
    value = "array<bigint>"
    test_many_keys_are_updated_at_once = test_none_is_a_value = None  # type: ignore[assignment]


@on("postgres", "cassandra-columns")
class TestDeclaredSnapshottable(SnapshottableContract):
    value = "array<bigint>"
    test_it_can_be_replaced = None  # type: ignore[assignment]
