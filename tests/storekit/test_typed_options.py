"""The options of a store's states as type checkers know them: a wrong name and a value of another type are found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
from states.cassandra import CassandraOptions, CassandraState
from states.delta import DeltaState
from states.kafka import KafkaTopicState
from states.memcached import MemcachedState
from states.postgres import PostgresState
from states.redis import RedisOptions, RedisState

RedisState("redis://a", ttl_s=86_400, cache=10)
RedisState.opaque("redis://a", prefix="p")
RedisState.transactional(RedisOptions("redis://a"), cache=10)
PostgresState("postgresql://a/b", layout="columns")
CassandraState.opaque(["a", "b"], keyspace="k")
CassandraState(CassandraOptions(("a",)), keyspace="k")
MemcachedState.non_transactional("a:1,b:2", prefix="p")
DeltaState("table", fsync=False)
KafkaTopicState.transactional("a:1", "topic", prefix="p")
"""
WRONG = {
    'RedisState("redis://a", tll_s=1)': 'Unexpected keyword argument "tll_s" for "RedisState"; did you mean "ttl_s"?',
    'RedisState.opaque("redis://a", tll_s=1)': '"tll_s".*did you mean "ttl_s"',
    'RedisState.transactional("redis://a", cache="10")': 'incompatible type "str"; expected "int"',
    "RedisState.opaque(5)": 'incompatible type "int"; expected "str | RedisOptions | None"',
    'PostgresState("postgresql://a/b", tabel="t")': '"tabel".*did you mean "table"',
    'CassandraState.non_transactional("a", changes="7d")': '"changes"',
    'MemcachedState("a:1", pre_fix="p")': '"pre_fix".*did you mean "prefix"',
    'DeltaState.opaque("table", fsnyc=True)': '"fsnyc".*did you mean "fsync"',
    'KafkaTopicState.transactional("a:1", "topic", compresion="lz4")': '"compresion".*did you mean "compression"',
}


@pytest.mark.long
def test_a_type_checker_finds_a_wrong_option(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("\n".join([PROGRAM.strip(), *WRONG]) + "\n")
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(program)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    first = len(PROGRAM.strip().splitlines()) + 1
    told = {int(number): text for number, text in re.findall(r"program\.py:(\d+): error: (.*)", found.stdout)}
    assert told.keys() == set(range(first, first + len(WRONG))), found.stdout + found.stderr
    for number, (call, said) in enumerate(WRONG.items(), first):
        assert re.search(said.replace("|", r"\|").replace("?", r"\?"), told[number]), (call, told[number])
