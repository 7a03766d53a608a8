"""The contracts and the suite over real stores: memory, Delta and SQLite; two methods alone and a cache too."""

import importlib
import io
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from states.memory import MemoryMapState
from tests.harness.crashing_stores import DictMap, LateMap
from tests.testing.backend.wrong_backends import Factory, over
from trident.errors import ConfigError
from trident.state import (
    CodecSerializer,
    JSONOpaqueSerializer,
    MicroBatchIBackingMap,
    SerializedMap,
    StateConf,
    map_state,
)
from trident.testing import (
    BackingMapContract,
    FencedMapContract,
    Limits,
    MapStateContract,
    Promise,
    SnapshottableContract,
    Status,
    backend_suite,
)

pytestmark = pytest.mark.slow

sqlite_state = importlib.import_module("examples.sqlite_state")
SQLiteMap: Any = sqlite_state.SQLiteMap
TWO_METHODS = Limits(repartitions=True)
SQLITE = sqlite_state.LIMITS


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, if there is one: what is tested here does not depend on a disk's sync."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


def open_sqlite(path: str, conf: StateConf, partition_index: int, num_partitions: int) -> SerializedMap:
    return SerializedMap(SQLiteMap(path, conf.prefix), CodecSerializer())


def check(factory: Any, seconds: float = 2.0, **arguments: Any) -> Any:
    report = backend_suite(factory, seconds=seconds, out=io.StringIO(), **arguments)
    report.raise_if_violated()
    assert report.ok
    return report


MEMORY: dict[str, tuple[type[Any], Any]] = {
    "TestMemoryMap": (BackingMapContract, MemoryMapState),
    "TestMemoryFence": (FencedMapContract, MemoryMapState.opaque()),
    "TestMemoryState": (MapStateContract, MemoryMapState.transactional()),
    "TestMemoryValue": (SnapshottableContract, MemoryMapState.non_transactional()),
}
globals().update({name: type(name, (base,), {"factory": made}) for name, (base, made) in MEMORY.items()})


class TestSQLiteMap(BackingMapContract):
    limits = SQLITE

    @pytest.fixture(autouse=True)
    def _open(self, folder: Path) -> None:
        self.factory = partial(open_sqlite, str(folder / "state.db"))


class TestSQLiteState(MapStateContract):
    @pytest.fixture(autouse=True)
    def _open(self, folder: Path) -> None:
        self.factory = map_state(partial(open_sqlite, str(folder / "state.db")), cache=100)


class TestAMethodAsFactory(SnapshottableContract):
    server = Factory()

    def factory(self, conf: StateConf, partition_index: int, num_partitions: int) -> SerializedMap:
        return self.server(conf, partition_index, num_partitions)


@pytest.mark.long
def test_a_map_of_bytes_is_wrapped() -> None:
    check(over({}), kinds=["transactional"], limits=Limits(raw_bytes=True), seconds=0)


@pytest.mark.long
@pytest.mark.parametrize("store", [DictMap, LateMap], ids=lambda store: store.__name__)
def test_two_methods_keep_what_they_claim(store: type[DictMap]) -> None:
    report = check(over({}, store), kinds=["opaque", "transactional"], limits=TWO_METHODS)
    assert report.status(Promise.PARTITIONS) is Status.OK


@pytest.mark.long
def test_json_is_a_store_without_all_types() -> None:
    of_bytes = over({})

    def open_json(conf: StateConf, partition_index: int, num_partitions: int) -> SerializedMap:
        return SerializedMap(of_bytes(conf, partition_index, num_partitions), JSONOpaqueSerializer())

    check(open_json, limits=Limits(all_types=False), seconds=0)
    assert Promise.VALUES in backend_suite(open_json, limits=Limits(), seconds=0, out=io.StringIO()).violated


@pytest.mark.long
def test_wrappers_keep_what_the_store_claims() -> None:
    server = Factory()
    chunked = lambda *where: MicroBatchIBackingMap(server(*where), 70, 30)  # noqa: E731
    assert check(map_state(chunked, cache=50)).status(Promise.FENCING) is Status.OK


@pytest.mark.parametrize("factory", [5, "open_map", object(), {}], ids=["int", "str", "object", "dict"])
def test_what_is_no_factory_is_refused(factory: Any) -> None:
    if isinstance(factory, Mapping):
        assert not backend_suite(factory, out=io.StringIO()).ok  # nothing was checked
    else:
        with pytest.raises(ConfigError, match="is no factory; give a function"):
            backend_suite(factory)


def test_a_contract_without_a_factory_says_so() -> None:
    with pytest.raises(ConfigError, match="BackingMapContract has no factory"):
        BackingMapContract().test_answers_come_in_the_order_asked()


def test_a_spec_is_checked_as_its_own_kind_only() -> None:
    with pytest.raises(ValueError, match="a StateSpec that is transactional cannot be checked as opaque"):
        backend_suite(MemoryMapState.transactional(), kinds=["opaque"])


@pytest.mark.long
def test_the_same_seed_draws_the_same() -> None:
    first, second = (backend_suite(Factory(), seconds=0, seed=7, out=io.StringIO()) for _ in range(2))
    assert first.findings == second.findings


@pytest.mark.parametrize("field", ["chunk", "max_key_bytes", "max_value_bytes"])
def test_limits_of_nothing_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}=0"):
        Limits(**{field: 0})  # type: ignore[arg-type]


def test_the_report_is_a_table_with_seed_and_first_failure() -> None:
    out = io.StringIO()
    report = backend_suite(over({}), limits=Limits(lists=True), seconds=0, seed=3, out=out)
    assert out.getvalue() == str(report)
    assert "listing         violated" in str(report)
    assert "durable         not claimed" in str(report)
    assert "Limits(lists=True), but the map has no key_pages" in str(report)
    assert "seed 3" in str(report)
