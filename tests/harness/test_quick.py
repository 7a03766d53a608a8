"""Which tests are quick, which cases the default run takes, how it is shared out among processes, and what it needs."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import servers
from tests.harness.kafka_servers import start_kafka
from tests.harness.quick import chosen, has_none
from tests.harness.workers import number_of_workers, piece

ROOT = Path(__file__).parents[2]
JVM = "from trident.spark.session import spark_session; spark_session('t')"
TESTS = f"""
import subprocess, sys
import pytest
from tests.harness.servers import start_redis

def test_jvm():
    with pytest.raises(Exception):
        {JVM}

def test_jvm_of_a_child():
    subprocess.run([sys.executable, "-c", "import subprocess; subprocess.run(['java', '-version'])"], check=True)

def test_server(tmp_path):
    start_redis(tmp_path)

def test_fixture(redis_server):
    assert redis_server.port

@pytest.mark.server
def test_mark(tmp_path):
    start_redis(tmp_path).stop()

@pytest.fixture
def with_spark(spark):
    pass

def test_through_a_fixture(with_spark):
    pass

def test_nothing():
    pass
"""


def run_of(folder: Path, *words: str) -> str:
    """Run the tests in a folder as those of this project; return what is printed."""
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "tests.conftest", folder, *words]
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    return done.stdout


@pytest.mark.long
@pytest.mark.slow
def test_a_quick_test_starts_neither_a_jvm_nor_a_server(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    said = run_of(tmp_path, "-v", "-m", "quick or server")
    words = [line.split() for line in said.splitlines() if "::" in line.split(" ")[0]]
    verdicts = {nodeid.split("::")[1]: verdict for nodeid, verdict, *_ in words}
    assert verdicts == {
        "test_jvm": "FAILED",
        "test_jvm_of_a_child": "FAILED",
        "test_server": "FAILED",
        "test_fixture": "PASSED",
        "test_mark": "PASSED",
        "test_nothing": "PASSED",
    }, said
    assert said.count("mark it with spark: java") >= 2  # the summary may repeat it
    assert "test_it.py::test_server starts redis-server; mark it with server" in said


SAMPLES = """
import pytest

@pytest.mark.sample(2)
@pytest.mark.parametrize("color", ["red", "blue"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_matrix(size, color):
    assert color != "blue"

@pytest.mark.long
def test_long():
    pass

def test_plain():
    pass
"""


def test_a_few_cases_have_as_many_values_as_they_can() -> None:
    cases = [{"color": color, "size": size} for color in range(2) for size in range(3)]
    assert [cases[number] for number in sorted(chosen(cases, 3))] == [
        {"color": 0, "size": 0},
        {"color": 0, "size": 2},
        {"color": 1, "size": 1},
    ]
    assert chosen(cases, 100) == set(range(6))


def test_a_file_is_left_out_if_no_test_of_it_can_be_quick(tmp_path: Path) -> None:
    file, one = tmp_path / "test_it.py", "\n\n@pytest.mark.slow\ndef test_it(): pass\n"
    for text, left_out in [
        ("pytestmark = pytest.mark.slow  # why", True), ("pytestmark = [pytest.mark.server, pytest.mark.timeout(9)]", True),
        ("pytestmark = pytest.mark.usefixtures('spark')", False), ("pytestmark = pytest.mark.quick", False), ("", False),
        ("pytestmark = pytest.mark.slow\n\n@pytest.mark.quick\ndef test_so(): pass", False),
    ]:  # fmt: skip
        file.write_text(text + one, encoding="utf-8")
        assert has_none(file) is left_out, text
    assert not has_none(tmp_path)


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize(("words", "run"), [([], 3), (["-m", "not soak"], 8)])
def test_the_default_run_takes_a_sample_and_names_failures_at_once(tmp_path: Path, words: list[str], run: int) -> None:
    (tmp_path / "test_it.py").write_text(SAMPLES, encoding="utf-8")
    said = run_of(tmp_path, *words)
    progress = said.partition("= FAILURES =")[0]
    failed = sum("FAILED test_it.py::test_matrix[" in line for line in progress.splitlines())
    assert "FAILED test_it.py::test_matrix[2-blue]" in progress  # the second has other values than the first
    assert f"{failed} failed, {run - failed} passed" in said, said
    assert failed == (3 if words else 1)


@pytest.mark.parametrize(("nodeid", "of"), [
    ("tests/test_fields.py::test_a[b]", "tests/test_fields.py"),
    ("tests/a/test_b.py::TestC::test_d[tests/x.py::y]", "tests/a/test_b.py"),
    ("tests/states/cassandra/test_cassandra.py::test_a", "cassandra"),
    ("tests/stores/test_campaigns.py::test_a_store_passes_a_campaign[cassandra-kills]", "cassandra"),
    ("tests/stores/test_campaigns.py::test_a_store_passes_a_campaign[redis-kills]",
        "tests/stores/test_campaigns.py"),
    ("tests/states/delta/test_delta_spark.py::test_a", "delta on spark"),
])  # fmt: skip
def test_a_file_is_a_piece_and_what_shares_something_slow_is_one(nodeid: str, of: str) -> None:
    assert piece(nodeid) == of


def test_the_number_of_processes_is_within_bounds() -> None:
    assert 1 <= number_of_workers(is_quick=True) <= number_of_workers(is_quick=False) <= 4


def test_missing_jars_are_an_error_that_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "JARS", tmp_path)
    with pytest.raises(RuntimeError, match="there is no .*/kafka; run: make servers"):
        start_kafka(tmp_path)
