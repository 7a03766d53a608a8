"""Whatever takes the folder of a log takes the address of one on a server: commands, readers, dead letters, tests."""

import json
import os
import textwrap
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType
from typer.testing import CliRunner

from tests.storm.random_trees import chain
from trident import open_state
from trident.cli.app import app
from trident.cli.target import load_topology
from trident.data_source import TridentDataSource
from trident.drpc import LocalDRPC
from trident.errors import AlreadyRunningError, LogError
from trident.storm.state_lookup import StateLookupBolt
from trident.storm.testing import MockedSpout, complete_topology
from trident.testing import TopologyTestDriver

pytestmark = [pytest.mark.slow, pytest.mark.server]

MODULE = """
    from pathlib import Path
    from spouts import FixedBatchSpout
    from states.delta import DeltaState
    from trident import TridentTopology
    from trident.operations import Count, MapGet, Split

    here = Path(__file__).parent

    def careful(word: str) -> str:
        if word == "bad" and not (here / "mended").exists():
            raise ValueError("cannot read this")
        return word

    topology = TridentTopology("counts")
    words = topology.new_stream("s", FixedBatchSpout("word: string", 2, *[[word] for word in "the cow the bad".split()]))
    again = words.each("word", lambda word: careful(word), "again: string").group_by("again")
    counts = again.persistent_aggregate(DeltaState.opaque(here / "table"), Count(), "count")
    asked = topology.new_drpc_stream("words").each("args", Split(), "word").group_by("word")
    asked.state_query(counts, "word", MapGet(), "found")
"""
SETTINGS: dict[str, Any] = {"engine": "in_process", "on_poison": "dead_letter", "max_batch_attempts": 1}

_numbers = count(1)


@pytest.fixture(params=["zookeeper", *(pytest.param(each, marks=pytest.mark.long) for each in ("postgres", "s3"))])
def address(request: pytest.FixtureRequest) -> str:
    server: Any = request.getfixturevalue(f"{request.param}_server")
    if request.param == "zookeeper":
        return f"zookeeper://{server.hosts}/places/log-{next(_numbers)}"
    if request.param == "s3":
        return f"s3://logs/places/log-{next(_numbers)}"
    return f"postgresql://trident@{server.address}/postgres?topology=places-{next(_numbers)}"


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    path = tmp_path / f"counts_of_places_{next(_numbers)}.py"
    path.write_text(textwrap.dedent(MODULE), encoding="utf-8")
    monkeypatch.chdir(tmp_path)  # dead letters are in a folder below it
    yield f"{path.name}:topology"
    assert not [thread for thread in threading.enumerate() if "zk_loop" in thread.name], "a connection is left open"


def run(target: str, address: str) -> None:
    with load_topology(target).start(log_dir=address, **SETTINGS) as running:
        running.process_all_available()


def command(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.long
def test_commands_read_a_log_on_a_server(target: str, address: str) -> None:
    with load_topology(target).start(log_dir=address, **SETTINGS) as running:
        running.process_all_available()
        found = json.loads(command("log", address, "--json"))
        assert (found["path"], found["topology"], found["txid"], found["tornBytes"]) == (address, "counts", 2, 0)
        assert f"process {os.getpid()} on " in found["writer"]
        with pytest.raises(AlreadyRunningError):
            load_topology(target).start(log_dir=address, **SETTINGS)
    assert json.loads(command("log", address, "--json"))["writer"] is None
    answer = json.loads(command("get", target, "count", "the", "cow", "bad", "--log-dir", address, "--json"))
    assert [each["value"] for each in answer["values"]] == [2, 1, None]
    assert f"{address},incarnation" in "".join(command("log", address).split())  # a line is 80 characters long


def test_what_is_not_there_is_said(target: str, address: str) -> None:
    for words in (
        ["log", address],
        ["dead-letters", "list", address],
        ["get", target, "count", "the", "--log-dir", address],
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 1
        there = "in" if words[0] == "get" else "at"
        assert f"there is no transaction log {there} {address}" in " ".join(done.output.split())
    with pytest.raises(LogError, match="there is no transaction log in [a-z0-9]+://"):
        open_state(load_topology(target), "count", log_dir=address)


def test_dead_letters_beside_the_program_can_be_put_back(target: str, address: str, tmp_path: Path) -> None:
    run(target, address)
    assert [path.suffix for path in (tmp_path / "trident-log" / "counts" / "dead_letters").iterdir()] == [".jsonl"]
    (letter,) = json.loads(command("dead-letters", "list", address, "--json"))
    assert letter["tuple"] == {"word": "'bad'"}
    (tmp_path / "mended").touch()
    assert "by the next driver of the topology" in command("dead-letters", "replay", address, "--all")
    run(target, address)
    assert "no dead letter waits" in command("dead-letters", "list", address)
    with open_state(load_topology(target), "count", log_dir=address) as state:
        assert state.multi_get(["the", "cow", "bad"]) == [2, 1, 1]


def test_readers_in_this_process_follow_a_log_on_a_server_and_leave_no_connection(target: str, address: str) -> None:
    run(target, address)
    topology = load_topology(target)
    with open_state(topology, "count", log_dir=address) as state:
        assert (state.multi_get(["the", "cow"]), state.txid) == ([2, 1], 2)
    with LocalDRPC(topology, log_dir=address) as drpc:
        assert drpc.execute("words", "the cow") is not None
    with (
        open_state(topology, "count", log_dir=address) as state,
        topology.start(log_dir=address, **SETTINGS) as running,
    ):
        running.process_all_available()
        assert state.txid == running.txid
    source = TridentDataSource({"topology": target, "log_dir": address, "state": "count"})
    reader = source.reader(StructType())
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert sorted((row["again"], row["count"]) for row in rows) == [("cow", 1), ("the", 2)]


def test_a_bolt_looks_up_what_a_log_on_a_server_says(target: str, address: str, tmp_path: Path) -> None:
    run(target, address)
    program = f"{tmp_path / target}"
    bolt = StateLookupBolt(program, "count", fields="word: string", key="word", value="n: bigint", log_dir=address)
    done = complete_topology(chain(words=MockedSpout("word: string"), lookup=bolt), {"words": [["the"], ["cow"]]})
    assert sorted(done.tuples("lookup")) == [("cow", 1), ("the", 2)]


def test_the_driver_of_tests_takes_a_log_on_a_server(target: str, address: str) -> None:
    for expected in ([1, None], [2, 1]):
        with TopologyTestDriver(load_topology(target), log_dir=address) as driver:
            driver.feed("s", *(["the"] if expected == [1, None] else ["the", "cow"]))
            result = driver.step()
            assert result is not None
            assert result.committed
            assert driver.state("count").multi_get(["the", "cow"]) == expected
