"""The options of all stores have one vocabulary: an option has one name and one check, and type checkers know it."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from tests.house_figures import store_options
from trident.errors import ConfigError

ROOT = Path(__file__).parents[2]
FORMER = {  # names that some stores had for what the others called otherwise
    "username", "key_prefix", "expiration_s", "allow_short_expiration", "on_eviction", "tls_ca", "tls_certificate", "tls_key",
}  # fmt: skip
NEEDED = {"url": "postgresql://a", "bootstrap": "a:9092", "topic": "t"}
STORES = store_options()
WRONG = {
    "cache": -1, "num_partitions": 0, "connect_timeout_s": 0, "timeout_s": 0, "retries": -1, "backoff_s": -1,
    "max_backoff_s": -1, "max_keys_per_call": 0, "max_bytes_per_call": 0, "ttl_s": 60, "tls_ca_file": "ca.pem",
    "compact_after_commits": 0,
}  # fmt: skip

PROGRAM = """
from states.cassandra import CassandraOptions, CassandraState
from states.delta import DeltaState, delta_state_at
from states.kafka import KafkaTopicState
from states.memcached import MemcachedState
from states.postgres import PostgresState
from states.redis import RedisOptions, RedisState
from spouts import CsvFileSpout, RedisStreamBolt
from trident.state import StateConf

RedisState("redis://a", ttl_s=86_400, cache=10)
RedisState.opaque("redis://a", prefix="p")
RedisState.transactional(RedisOptions("redis://a"), cache=10)
PostgresState("postgresql://a/b", layout="columns")
CassandraState.opaque(["a", "b"], keyspace="k")
CassandraState(CassandraOptions(("a",)), keyspace="k")
MemcachedState.non_transactional("a:1,b:2", prefix="p")
MemcachedState.cache_for(RedisState("redis://a"), servers="a:1", ttl_s=86_400)
DeltaState("table", fsync=False)
delta_state_at("table", 1, StateConf(), kind="opaque", fsync=False)
KafkaTopicState.transactional("a:1", "topic", prefix="p")
RedisStreamBolt("redis://a", "s", "a: int", timeout_s=2.0, max_entries=10)
CsvFileSpout("books", "a: int", missing_columns="null", tail="hold")
"""
MISSPELT = {
    'RedisState("redis://a", tll_s=1)': 'Unexpected keyword argument "tll_s" for "RedisState"; did you mean "ttl_s"?',
    'RedisState.opaque("redis://a", tll_s=1)': '"tll_s".*did you mean "ttl_s"',
    'RedisState.transactional("redis://a", cache="10")': 'incompatible type "str"; expected "int"',
    "RedisState.opaque(5)": 'incompatible type "int"; expected "str | RedisOptions | None"',
    'PostgresState("postgresql://a/b", tabel="t")': '"tabel".*did you mean "table"',
    'CassandraState.non_transactional("a", changes="7d")': '"changes"',
    'MemcachedState("a:1", pre_fix="p")': '"pre_fix".*did you mean "prefix"',
    'MemcachedState.cache_for(RedisState("redis://a"), "a:1", tll_s=1)': '"tll_s".*did you mean "ttl_s"',
    'delta_state_at("table", 1, StateConf(), fsnyc=True)': '"fsnyc".*did you mean "fsync"',
    'DeltaState.opaque("table", fsnyc=True)': '"fsnyc".*did you mean "fsync"',
    'KafkaTopicState.transactional("a:1", "topic", compresion="lz4")': '"compresion".*did you mean "compression"',
    'RedisState("redis://a", layout="filds")': 'expected "Literal',
    'RedisStreamBolt("redis://a", "s", "a: int", tiemout_s=2.0)': '"tiemout_s".*did you mean "timeout_s"',
    'CsvFileSpout("books", "a: int", missing_columns="nul")': 'expected "Literal',
    'CsvFileSpout("books", "a: int", patern="*.csv")': '"patern".*did you mean "pattern"',
}


@pytest.mark.parametrize("store", STORES)
def test_shared_options_are_checked_alike(store: str) -> None:
    options = STORES[store]
    names = {each.name for each in dataclasses.fields(options)}
    place = {name: value for name, value in NEEDED.items() if name in names}
    if store == "redis":
        place["url"] = "redis://a"
    assert not names & FORMER
    for name in names & WRONG.keys():
        said = rf"{name}=.* of a {options.store} state: |a {options.store} state has TLS options"
        with pytest.raises(ConfigError, match=said):
            options.of(None, {**place, name: WRONG[name]})


def test_a_shared_option_has_one_type() -> None:
    types: dict[str, set[Any]] = {}
    for options in STORES.values():
        for name, type_ in get_type_hints(options).items():
            kind = re.sub(r"typing\.Literal\[.*\]", "str", str(type_))  # a layout is one of its store's
            types.setdefault(name, set()).add(kind)
    assert {name: found for name, found in types.items() if len(found) > 1} == {}


@pytest.mark.long
def test_a_type_checker_finds_a_wrong_option(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("\n".join([PROGRAM.strip(), *MISSPELT]) + "\n")
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(program)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    first = len(PROGRAM.strip().splitlines()) + 1
    told = {int(number): text for number, text in re.findall(r"program\.py:(\d+): error: (.*)", found.stdout)}
    assert told.keys() == set(range(first, first + len(MISSPELT))), found.stdout + found.stderr
    for number, (call, said) in enumerate(MISSPELT.items(), first):
        assert re.search(said.replace("|", r"\|").replace("?", r"\?"), told[number]), (call, told[number])
