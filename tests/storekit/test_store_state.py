"""What every store of `trident.storekit` has: options, kinds, retries and chunks of its calls, and structs as columns."""

import itertools
import logging
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from states.cassandra import CassandraState
from states.delta import DeltaState
from states.kafka import KafkaTopicState
from states.memcached import MemcachedState
from states.memory import MemoryMapState
from states.postgres import PostgresState
from states.redis import RedisState
from trident.errors import ConfigError, CorruptValueError, EnvironmentProblem, StateLossDetected, UnsupportedOperation
from trident.state import Key, StateConf, StateSpec, StateType, Txid
from trident.storekit import (
    Account,
    Expiring,
    Retries,
    ServerCalls,
    StoreState,
    by_count,
    by_size,
    driver_package,
    refuse_read_only,
    warn_of_eviction,
    warn_once,
    whole,
)
from trident.storekit.plain_columns import PlainShape


@dataclass(frozen=True, repr=False, kw_only=True)
class ShelfOptions(ServerCalls, Account, Expiring):
    store: ClassVar[str] = "Shelf"
    longest_ttl_s: ClassVar[int | None] = 864_000

    url: str = field(kw_only=False)
    boards: int = whole(4, 1, 8)


class ShelfMap:
    data: ClassVar[dict[tuple[str, Key], bytes]] = {}

    def __init__(self, options: ShelfOptions, conf: StateConf) -> None:
        self._name = f"{options.url} {conf.prefix}"

    def multi_get(self, keys: Sequence[Key]) -> list[bytes | None]:
        return [self.data.get((self._name, key)) for key in keys]

    def multi_put(self, keys: Sequence[Key], values: Sequence[bytes]) -> None:
        self.data.update(((self._name, key), value) for key, value in zip(keys, values, strict=True))


class ShelfState(StoreState[str | ShelfOptions]):
    """States on a shelf."""

    options = ShelfOptions

    @staticmethod
    def open_map(options: ShelfOptions, conf: StateConf, partition: int) -> ShelfMap:
        return ShelfMap(options, conf)


def test_each_kind_is_a_spec_that_can_be_pickled() -> None:
    makers: tuple[Any, ...] = (ShelfState, ShelfState.opaque, ShelfState.transactional, ShelfState.non_transactional)
    kinds = (StateType.OPAQUE, StateType.OPAQUE, StateType.TRANSACTIONAL, StateType.NON_TRANSACTIONAL)
    for kind, make in zip(kinds, makers, strict=True):
        spec = pickle.loads(pickle.dumps(make("shelf://a", num_partitions=2, cache=7)))
        assert (spec.factory.kind, spec.required_num_partitions, spec.factory.cache) == (kind, 2, 7)
        assert spec.facts.keeps_attempts is (kind is not StateType.NON_TRANSACTIONAL)
        state = spec.factory.make_state(StateConf("topology", kind.value), 0, 2)
        state.begin_commit(Txid(1))
        state.multi_put([("a",)], [1])
        state.commit(Txid(1))
        assert state.multi_get([("a",), ("b",)]) == [1, None]


def test_options_are_given_by_name_or_ready_and_some_replaced() -> None:
    ready = ShelfOptions("shelf://a", timeout_s=1.5)
    assert ShelfOptions.of(ready, {"boards": 2}) == replace(ready, boards=2)
    assert ShelfOptions.of("shelf://a", {"timeout_s": 1.5}) == ready
    assert ShelfOptions.of(None, {"url": "shelf://a", "timeout_s": 1.5}) == ready
    with pytest.raises(ConfigError, match="serializer 'xml' is unknown"):
        ShelfState.opaque("shelf://a", serializer="xml")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"boards": 9}, "boards=9 of a Shelf state: give a whole number from 1 to 8"),
        ({"boards": 2.0}, "boards=2.0 of a Shelf state: give a whole number"),
        ({"boards": True}, "boards=True"),
        ({"boards": None}, "boards=None"),
        ({"cache": -1}, "cache=-1 of a Shelf state: give a whole number of at least 0"),
        ({"num_partitions": 0}, "of at least 1"),
        ({"timeout_s": 0}, "timeout_s=0 of a Shelf state: give seconds above 0"),
        ({"connect_timeout_s": "1"}, "connect_timeout_s='1'"),
        ({"backoff_s": -0.1}, "seconds of at least 0"),
        ({"max_keys_per_call": 0}, "of at least 1"),
        ({"ttl_s": 3600}, "ttl_s=3600 of a Shelf state: .* Give at least 86400 .*allow_short_ttl=True"),
        ({"ttl_s": 864_001, "allow_short_ttl": True}, "None .never. or at most 864000 seconds"),
        ({"ttl_s": -1}, "of at least 0"),
        ({"tls_ca_file": "ca.pem"}, "TLS options and no TLS"),
        ({"ttl": 3600}, "a Shelf state has no option 'ttl'; did you mean 'ttl_s'\\? Known are: .*url, boards"),
        ({"colour": "red"}, r"has no option 'colour'.* Known are: "),
    ],
)
def test_wrong_options_are_refused_where_they_are_given(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ShelfState.opaque("shelf://a", **options)


def test_no_expiry_is_none_or_zero() -> None:
    assert ShelfOptions("a", ttl_s=0) == ShelfOptions("a")
    assert ShelfOptions("a", ttl_s=60, allow_short_ttl=True).ttl_s == 60


def test_a_store_by_its_name_is_an_opaque_state_and_what_copies_it_copies_a_spec() -> None:
    specs: list[StateSpec] = [
        RedisState("redis://x"), PostgresState("postgresql://x"), CassandraState("x"), MemcachedState("x"), DeltaState("x"),
    ]  # fmt: skip
    for spec in specs:
        assert (spec.kind, type(spec)) == (StateType.OPAQUE, StateSpec)
        assert replace(spec, required_num_partitions=1).required_num_partitions == 1
    assert RedisState("redis://x", cache=7) == RedisState.opaque("redis://x", cache=7) != RedisState("redis://x")


def test_every_store_names_an_option_that_it_does_not_have() -> None:
    stores: list[Callable[..., Any]] = [
        RedisState, PostgresState, CassandraState.opaque, MemcachedState.opaque, DeltaState,
        MemoryMapState.opaque, KafkaTopicState.transactional,
    ]  # fmt: skip
    for make in stores:
        with pytest.raises(ConfigError, match=r"a .* state has no option 'colour'.* Known are: "):
            make("x", colour="red")


def test_no_secret_is_shown() -> None:
    shown = repr(ShelfOptions("shelf://me:hush@host/?token=hush", password="hush"))
    assert "hush" not in shown
    assert "shelf://***@host/" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "spec", "package"),
    [
        ("psycopg", "PostgresState.opaque('postgresql://localhost/x')", "psycopg"),
        ("cassandra", "CassandraState.opaque('localhost')", "cassandra-driver"),
        ("deltalake", "DeltaState.opaque('somewhere')", "deltalake"),
        ("pymemcache.client.base", "MemcachedState.opaque()", "pymemcache"),
    ],
)
def test_a_driver_that_a_store_lacks_is_named(module: str, spec: str, package: str) -> None:
    called = spec.partition("State")[0].replace("Postgres", "PostgreSQL")
    store, name = spec.partition("State")[0].lower(), spec.partition(".")[0]
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        f"from states.{store} import {name}; from trident.state import StateConf\n"
        f"{spec}.factory.make_state(StateConf(), 0, 1)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert f"EnvironmentProblem: a {called} state needs the package {package}" in done.stderr
    assert f"pip install 'trident-spark[{store}]'" in done.stderr


@pytest.mark.parametrize(("extra", "brings"), [("redis", "trident-spark[redis]"), ("shelf", "shelf"), ("x[y]", "x[y]")])
def test_a_missing_driver_is_named(extra: str, brings: str) -> None:
    said = re.escape(f"; pip install '{brings}'")
    with (
        pytest.raises(EnvironmentProblem, match=f"a Shelf state needs the package no-such-driver .*{said}$"),
        driver_package("Shelf", "no-such-driver", extra, "no_such_driver"),
    ):
        import no_such_driver.client  # type: ignore[import-not-found]  # noqa: F401
    with pytest.raises(ImportError, match="other"), driver_package("Shelf", "no-such-driver", "shelf"):
        raise ImportError("other", name="other")


SHAPE = PlainShape((("k", "string"),), (("a", "bigint"), ("b", "string")), is_struct=True)


@pytest.mark.parametrize("others", [[], [None], [(3, "z")]])
def test_a_member_that_is_not_declared_is_refused_as_one_that_is_missing(others: list[Any]) -> None:
    assert SHAPE.columns([{"a": 1, "b": "x"}, *others])[0][0] == 1
    for wrong, said in (({"a": 1, "b": "x", "c": 2}, r"\['c'\] are not declared"), ({"a": 1}, r"\['b'\] are missing")):
        with pytest.raises(CorruptValueError, match=said):
            SHAPE.columns([{"a": 1, "b": "x"}, *others, wrong])


LOGGER = logging.getLogger("storekit")


@given(st.lists(st.binary(max_size=9), max_size=40), st.integers(1, 10), st.integers(1, 30))
def test_chunks_are_whole_in_order_and_bounded(items: list[bytes], most: int, room: int) -> None:
    assert [item for chunk in by_count(items, most) for item in chunk] == items
    assert all(0 < len(chunk) <= most for chunk in by_count(items, most))
    chunks = list(by_size(items, map(len, items), most, room))
    assert [item for chunk in chunks for item in chunk] == items
    for chunk in chunks:
        assert 0 < len(chunk) <= most
        assert len(chunk) == 1 or sum(map(len, chunk)) <= room
    for one, following in itertools.pairwise(chunks):  # no chunk ends early
        assert len(one) == most or sum(map(len, one)) + len(following[0]) > room


class Flaky:
    """Fails so many times, then answers."""

    def __init__(self, failures: int) -> None:
        self.failures, self.calls = failures, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise OSError(f"failure {self.calls}")
        return "answer"


def test_a_call_is_tried_again_so_many_times() -> None:
    retries = Retries(2, 0.0, 0.0)
    assert retries.run(Flaky(2), OSError) == "answer"
    with pytest.raises(OSError, match="failure 3"):
        retries.run(Flaky(3), OSError)
    with pytest.raises(OSError, match="failure 1"):
        retries.run(Flaky(1), ValueError)


def test_somebody_else_may_decide_how_long_to_go_on() -> None:
    asked: list[tuple[str, int]] = []

    def goes_on(error: Exception, failures: int, waited_s: float) -> bool:
        asked.append((str(error), failures))
        assert (waited_s > 0) == (failures > 1)
        return failures < 3

    with pytest.raises(OSError, match="failure 3"):
        Retries(0, 0.0, 0.0).run(Flaky(9), OSError, goes_on)
    assert asked == [("failure 1", 1), ("failure 2", 2), ("failure 3", 3)]


def test_pauses_double_up_to_a_bound_with_jitter() -> None:
    retries = Retries(9, 0.1, 1.0)
    for failures, whole_s in ((1, 0.1), (2, 0.2), (4, 0.8), (5, 1.0), (10_000, 1.0)):
        assert {whole_s / 2 <= retries.pause_s(failures) <= whole_s for _ in range(50)} == {True}


def test_a_reader_writes_nothing() -> None:
    refuse_read_only(False, "write 2 keys", "state p")
    with pytest.raises(UnsupportedOperation, match="cannot write 2 keys: state p was opened to be read only"):
        refuse_read_only(True, "write 2 keys", "state p")


def test_a_risk_is_told_once_and_an_eviction_is_a_loss_unless_it_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        warn_once(LOGGER, "server a", "forgets")
    warn_once(LOGGER, "server b", "forgets")
    assert caplog.messages == ["server a: forgets", "server b: forgets"]
    with pytest.raises(StateLossDetected, match="3 keys were evicted"):
        warn_of_eviction(LOGGER, "state p", "3 keys were evicted", allowed=False)
    warn_of_eviction(LOGGER, "state p", "3 keys were evicted", allowed=True)
    assert "3 keys were evicted; a key that was evicted begins again" in caplog.messages[-1]
