"""Each extra alone, in an environment as pip makes it, does what it is for. The soak tests all of them."""

import json
import re
import signal
import subprocess
import textwrap
from collections.abc import Callable
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.harness.commands import started, until
from tests.harness.environments import Environment, build_wheel, needed, unpack
from tests.harness.kafka_topics import Topics
from tests.test_docs import ROOT, environment
from trident.extras import EXTRAS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

_WORDS = """
from urllib.request import urlopen

{imports}
from spouts import FixedBatchSpout
from trident import TridentTopology
from trident.operations import Count, MapGet, Split

topology = TridentTopology("words")
lines = topology.new_stream("lines", FixedBatchSpout("line: string", 1, ["the cow"], ["the moon"]))
words = lines.each("line", Split(), "word").group_by("word")
counts = words.persistent_aggregate({state}, Count(), "count")
topology.new_drpc_stream("count").group_by("args").state_query(counts, "args", MapGet(), "count")

if __name__ == "__main__":
    with topology.start(engine="in_process", {settings}) as running:
        running.process_all_available()
        print(running.state(counts).multi_get(["the"]))
        {last}
"""
_FIRST = {"redis", "cluster", "spark"}  # these are tried each time
_MEMORY = ("from states.memory import MemoryMapState", "MemoryMapState()")
_DELTA = ("from states.delta import DeltaState", "DeltaState.opaque('counts')")
_FROM_KAFKA = """
    from spouts.kafka import OpaqueTridentKafkaSpout
    from states.memory import MemoryMapState
    from trident import TridentTopology
    from trident.operations import Count

    topology = TridentTopology("words")
    words = topology.new_stream("words", OpaqueTridentKafkaSpout("SERVERS", "TOPIC", value="text", first_poll="earliest"))
    counts = words.group_by("value").persistent_aggregate(MemoryMapState(), Count(), "count")
    with topology.start(engine="in_process") as running:
        running.process_all_available()
        print(running.state(counts).multi_get(["the"]))
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    folder = tmp_path_factory.mktemp("wheel")
    return unpack(build_wheel(folder), folder / "unpacked")


@pytest.fixture
def pip_install(unpacked: Distribution, tmp_path: Path) -> Callable[..., Environment]:
    """Return what makes the environment of `pip install 'trident-spark[…]'`."""

    def made(*extras: str) -> Environment:
        new = Environment(tmp_path / "venv", environment())
        for each in (unpacked, *needed(unpacked, extras)):
            new.link(each)
        new.add_command()
        return new

    return made


def words(folder: Path, state: tuple[str, str], settings: str = "", last: str = "") -> str:
    """Write the word count with a state; returns its file."""
    imports, call = state
    text = _WORDS.format(imports=imports, state=call, settings=settings, last=last)
    (folder / "words.py").write_text(text, encoding="utf-8")
    return "words.py"


def program(folder: Path, text: str) -> str:
    (folder / "program.py").write_text(textwrap.dedent(text), encoding="utf-8")
    return "program.py"


def run_words(
    pip_environment: Environment, folder: Path, state: tuple[str, str], settings: str = "", last: str = ""
) -> str:
    """Run the word count with a state; returns what it printed."""
    return pip_environment.run(pip_environment.python, words(folder, state, settings, last), cwd=folder)


def test_without_an_extra_words_are_counted_in_memory(pip_install: Callable[..., Environment], tmp_path: Path) -> None:
    assert run_words(pip_install(), tmp_path, _MEMORY) == "[2]\n"


def test_without_the_extra_cli_the_command_says_what_to_install(
    pip_install: Callable[..., Environment], tmp_path: Path
) -> None:
    done = _ended(pip_install("redis"), tmp_path, "doctor")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: the command `trident` needs the package typer")
    assert done.stderr.endswith("pip install 'trident-spark[cli]'\n")


@pytest.mark.long
def test_without_pyspark_a_start_on_spark_says_what_to_do(
    pip_install: Callable[..., Environment], tmp_path: Path
) -> None:
    bare = pip_install("delta", "cli")
    done = _ended(bare, tmp_path, "run", f"{words(tmp_path, _DELTA)}:topology", "--once")
    assert done.returncode == 1
    assert re.search(
        r"error: .*PySpark 3\.5 or newer, and \S+ has none\..*pip install 'trident-spark\[spark\]'", done.stderr
    )
    assert "in_process" in done.stderr
    assert not (tmp_path / "counts").exists()


@pytest.mark.sample(1)
@pytest.mark.parametrize("extra", ["", "redis", "all", "cluster", "spark", *sorted({*EXTRAS} - _FIRST)])
def test_the_doctor_finds_what_an_extra_brings(
    extra: str, pip_install: Callable[..., Environment], tmp_path: Path
) -> None:
    done = _ended(pip_install("cli", *filter(None, [extra])), tmp_path, "doctor", "--json")
    told = json.loads(done.stdout)
    usable = {name for name, found in told["extras"].items() if found["usable"]}
    brought = {"": {"cli"}, "all": {*EXTRAS}, "cluster": {"cluster", "ui", "drpc", "zookeeper"}}
    brought |= {"ui": {"ui", "drpc"}, "spark": {"spark", "storm"}}
    assert usable == brought.get(extra, {extra}) | {"cli"}
    assert told["pyspark"]["usable"] is (extra in ("spark", "all"))
    assert done.returncode == (0 if extra in ("spark", "all") and told["java"]["usable"] else 1)
    assert all("missing: " in found["problem"] for found in _others(told, usable | {"spark"}))
    mends = {name: found["mend"] for name, found in told["extras"].items() if name not in usable}
    assert mends == {name: f"pip install 'trident-spark[{name}]'" for name in mends}


def _others(told: dict[str, Any], usable: set[str]) -> list[dict[str, Any]]:
    return [found for name, found in told["extras"].items() if name not in usable]


def _ended(pip_environment: Environment, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run the command `trident`, which may fail."""
    program = str(pip_environment.scripts / "trident")
    variables = pip_environment.variables
    return subprocess.run(
        [program, *command], cwd=folder, env=variables, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.spark
@pytest.mark.long
def test_spark(pip_install: Callable[..., Environment], tmp_path: Path) -> None:
    bare = pip_install("spark", "delta")
    bare.run("trident", "run", f"{words(tmp_path, _DELTA)}:topology", "--once", cwd=tmp_path)
    assert "2" in bare.run("trident", "get", "words.py:topology", "count", "the", cwd=tmp_path)


@pytest.mark.long
def test_delta(pip_install: Callable[..., Environment], tmp_path: Path) -> None:
    bare = pip_install("delta", "cli")
    assert run_words(bare, tmp_path, _DELTA) == "[2]\n"
    assert "the" in bare.run("trident", "get", "words.py:topology", "count", "the", cwd=tmp_path)


_CASSANDRA = "CassandraState.opaque(['{host}'], port={port}, keyspace='extras', replication=1, table='counts')"


@pytest.mark.server
@pytest.mark.parametrize(
    ("extra", "state", "settings"),
    [
        pytest.param("redis", "RedisState.opaque('redis://{address}/0')", "", marks=pytest.mark.long),
        pytest.param("memcached", "MemcachedState.opaque('{address}')", "", marks=pytest.mark.soak),
        pytest.param(
            "postgres", "PostgresState.opaque('postgresql://trident@{address}/postgres')", "", marks=pytest.mark.soak
        ),
        pytest.param("cassandra", _CASSANDRA, "", marks=pytest.mark.soak),
        pytest.param("zookeeper", "", "log_dir='zookeeper://{address}/extras'", marks=pytest.mark.soak),
        pytest.param("object-store", "", "log_dir='s3://logs/extras'", marks=pytest.mark.soak),
    ],
)
def test_what_is_on_a_server(
    extra: str,
    state: str,
    settings: str,
    pip_install: Callable[..., Environment],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    server: Any = request.getfixturevalue(f"{'s3' if extra == 'object-store' else extra}_server")
    address: str = server.hosts if extra == "zookeeper" else server.address
    host, _, port = address.partition(":")
    store = (
        f"from states.{extra} import {state.partition('.')[0]}",
        state.format(address=address, host=host, port=port),
    )
    assert (
        run_words(pip_install(extra), tmp_path, store if state else _MEMORY, settings.format(address=address))
        == "[2]\n"
    )


@pytest.mark.soak
def test_sketches(pip_install: Callable[..., Environment], tmp_path: Path) -> None:
    counting = "CountDistinct('w', approximate=True).fields_of('n', Fields('w: string'))"
    program = f"from trident import Fields; from trident.operations import CountDistinct; {counting}"
    environment = pip_install("sketches")
    environment.run(environment.python, "-c", program, cwd=tmp_path)


@pytest.mark.server
@pytest.mark.soak
def test_kafka(pip_install: Callable[..., Environment], tmp_path: Path, kafka_topics: Topics) -> None:
    topic = kafka_topics.create()
    kafka_topics.produce(topic, [b"the", b"cow", b"the"])
    text = _FROM_KAFKA.replace("SERVERS", kafka_topics.bootstrap).replace("TOPIC", topic)
    bare = pip_install("kafka")
    assert bare.run(bare.python, program(tmp_path, text), cwd=tmp_path) == "[2]\n"


@pytest.mark.soak
def test_metrics(pip_install: Callable[..., Environment], tmp_path: Path) -> None:
    last = "print('trident_batches' in urlopen(running.metrics_url).read().decode())"
    assert run_words(pip_install("metrics"), tmp_path, _MEMORY, "metrics_port=0", last) == "[2]\nTrue\n"


@pytest.mark.soak
def test_drpc(pip_install: Callable[..., Environment], tmp_path: Path) -> None:
    imports = "from trident.drpc import DRPCClient, DRPCServer\n" + _MEMORY[0]
    last = "print(DRPCClient(DRPCServer(running.local_drpc(), port=0).url).execute('count', 'the'))"
    assert run_words(pip_install("drpc"), tmp_path, (imports, _MEMORY[1]), last=last) == "[2]\n[['the', 2]]\n"


@pytest.mark.spark
@pytest.mark.soak
def test_storm(pip_install: Callable[..., Environment], tmp_path: Path) -> None:
    bare = pip_install("storm", "spark")
    assert "the" in bare.run(bare.python, str(ROOT / "examples/bolt_words.py"), "--spark", cwd=tmp_path)


@pytest.mark.long
def test_ui(pip_install: Callable[..., Environment], tmp_path: Path) -> None:
    bare = pip_install("ui", "cli")
    command = ("run", f"{words(tmp_path, _MEMORY)}:topology", "--engine", "in_process", "--ui", "--ui-port", "0")
    with started(*command, cwd=tmp_path, program=(str(bare.scripts / "trident"),), variables=bare.variables) as running:
        url = running.says(r"http://[\d.:]+")
        assert b'"words"' in urlopen(f"{url}/api/v1/topology/summary").read()


@pytest.mark.long
@pytest.mark.parametrize("extras", [("cluster", "delta"), pytest.param(("cluster",), marks=pytest.mark.soak)])
def test_cluster(pip_install: Callable[..., Environment], tmp_path: Path, extras: tuple[str, ...]) -> None:
    bare = pip_install(*extras)
    target = f"{words(tmp_path, _DELTA if 'delta' in extras else _MEMORY)}:topology"
    with started(
        "up", "--port", "0", cwd=tmp_path, program=(str(bare.scripts / "trident"),), variables=bare.variables
    ) as up:
        up.says("submit a topology")
        bare.run("trident", "submit", target, "--conf", "engine=in_process", "--wait", cwd=tmp_path)
        assert re.search(r"words +active", bare.run("trident", "list", cwd=tmp_path))
        if "delta" in extras:
            until(
                lambda: "2" in bare.run("trident", "get", target, "count", "the", cwd=tmp_path), "the words are counted"
            )
        up.signal(signal.SIGTERM)
        assert up.end()[0] == 143
