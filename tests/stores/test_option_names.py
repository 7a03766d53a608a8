"""The options of all stores have one vocabulary: an option of one meaning has one name, and one check."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from states.cassandra import CassandraOptions
from states.delta import DeltaOptions
from states.kafka import KafkaTopicOptions
from states.memcached import MemcachedOptions
from states.postgres import PostgresOptions
from states.redis import RedisOptions
from trident.errors import ConfigError
from trident.storekit import StoreOptions

FORMER = {  # names that some stores had for what the others called otherwise
    "username", "key_prefix", "expiration_s", "allow_short_expiration", "on_eviction", "tls_ca", "tls_certificate", "tls_key",
}  # fmt: skip
STORES: dict[str, tuple[type[StoreOptions], dict[str, Any]]] = {
    "Redis": (RedisOptions, {"url": "redis://a"}),
    "Memcached": (MemcachedOptions, {}),
    "Cassandra": (CassandraOptions, {}),
    "PostgreSQL": (PostgresOptions, {"url": "postgresql://a"}),
    "Delta": (DeltaOptions, {}),
    "Kafka": (KafkaTopicOptions, {"bootstrap": "a:9092", "topic": "t"}),
}
WRONG = {
    "cache": -1, "num_partitions": 0, "connect_timeout_s": 0, "timeout_s": 0, "retries": -1, "backoff_s": -1,
    "max_backoff_s": -1, "max_keys_per_call": 0, "max_bytes_per_call": 0, "ttl_s": 60, "tls_ca_file": "ca.pem",
    "compact_after_commits": 0,
}  # fmt: skip


@pytest.mark.parametrize("store", STORES)
def test_shared_options_are_checked_alike(store: str) -> None:
    options, place = STORES[store]
    assert options.store == store
    names = {each.name for each in dataclasses.fields(options)}
    assert not names & FORMER
    for name in names & WRONG.keys():
        with pytest.raises(ConfigError, match=rf"{name}=.* of a {store} state: |a {store} state has TLS options"):
            options.of(None, {**place, name: WRONG[name]})


def test_a_shared_option_has_one_type() -> None:
    types: dict[str, set[Any]] = {}
    for options, _ in STORES.values():
        for each in dataclasses.fields(options):
            types.setdefault(each.name, set()).add(each.type)
    assert {name: found for name, found in types.items() if len(found) > 1} == {}
