"""Topologies on a standalone cluster, as users start them: nothing of theirs, nor Trident, is on its workers' paths."""

import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest

from tests.harness.commands import Background, last_txid, started, trident, until, write_module
from tests.harness.servers import ROOT, Server
from tests.harness.spark_cluster import SparkCluster, start_spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

_LIMIT_S = 240.0  # on a busy machine two executors take a minute to start

_SUBMIT = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
_TOPOLOGIES = """
    from cleaning import tidy
    from spouts import FixedBatchSpout
    from states.redis import RedisState
    from trident import TridentTopology
    from trident.operations import Count, Split

    ROWS = [["The cow "], [" the moon"], ["the man"], ["The end"]]

    def made(name, cycle):
        topology = TridentTopology(name)
        (
            topology.new_stream("lines", FixedBatchSpout("line: string", 2, *ROWS, cycle=cycle))
            .each("line", tidy, "tidied: string")
            .each("tidied", Split(), "word")
            .group_by("word")
            .persistent_aggregate(RedisState.opaque("redis://ADDRESS/0"), Count(), "count")
            .parallelism_hint(2)
        )
        return topology

    words, endless = made("words-NAME", False), made("endless-NAME", True)
"""
_CLEANING = """
    def tidy(line: str) -> str:
        return line.strip().lower()
"""


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with start_spark_cluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


def make_environment(folder: Path, *more: str) -> Path:
    """Make an environment of this Python without any package, or with those of further folders."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "more.pth").write_text("\n".join(more), encoding="utf-8")
    found = subprocess.run([python, "-c", "import trident"], cwd=folder, capture_output=True, text=True, check=False)
    assert "No module named 'trident'" in found.stderr
    return python


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack an environment that has what Trident needs, but not Trident."""
    folder = tmp_path_factory.mktemp("environment")
    make_environment(folder / "environment", sysconfig.get_path("purelib"))
    packed = folder / "environment.tar.gz"
    with tarfile.open(packed, "w:gz") as target:
        target.add(folder / "environment", ".")
    return packed


@pytest.fixture
def folder(tmp_path: Path, redis_server: Server) -> Path:
    text = _TOPOLOGIES.replace("ADDRESS", redis_server.address).replace("NAME", tmp_path.name)
    write_module(tmp_path, "counting", text)
    write_module(tmp_path, "cleaning", _CLEANING)
    write_module(tmp_path, "run", "from trident.cli import main\nmain()")
    return tmp_path


@pytest.mark.long
def test_a_worker_without_packages_is_said_to_lack_them(spark_cluster: SparkCluster, folder: Path) -> None:
    python = make_environment(folder / "bare")
    done = trident(
        "run", "counting:words", "--once", "--master", spark_cluster.url, cwd=folder, timeout_s=_LIMIT_S,
        PYSPARK_PYTHON=str(python),
    )  # fmt: skip
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "failed once in step 'spark': EnvironmentProblem: the executor on host 127.0.0.1 cannot import " in error
    assert f"Install it there for {python}, or ship an environment (spark-submit: --archives " in error
    assert "Traceback" not in done.stderr
    assert "ERROR" not in done.stderr


def _driver(submitted: Background) -> psutil.Process | None:
    commands = {one: one.as_dict(["cmdline"])["cmdline"] or [] for one in submitted.descendants()}  # None of a zombie
    return next((one for one, words in commands.items() if any(word.endswith("run.py") for word in words[:3])), None)


@pytest.mark.long
def test_spark_submit_ends_clean_after_a_commit(spark_cluster: SparkCluster, archive: Path, folder: Path) -> None:
    words = (
        "--master", spark_cluster.url, "--archives", f"{archive}#environment",
        "--conf", "spark.pyspark.python=./environment/bin/python", "--conf", f"spark.pyspark.driver.python={sys.executable}",
        "run.py", "run", "counting:endless", "--log-format", "json",
    )  # fmt: skip
    log_dir = folder / "trident-log" / f"endless-{folder.name}"
    kept = {name: each for name, each in os.environ.items() if name not in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    program = "/usr/bin/env", "-i", *(f"{name}={each}" for name, each in kept.items()), _SUBMIT
    with started(*words, cwd=folder, program=program) as submitted:
        until(lambda: last_txid(log_dir) >= 2, "two batches are committed")
        driver = _driver(submitted)
        assert driver is not None
        driver.send_signal(signal.SIGTERM)
        code, out, problems = submitted.end()
        until(lambda: not submitted.session(), "every process of the run has ended")
    txid = last_txid(log_dir)
    assert code == 143, problems
    assert f"stopped after batch {txid}; the next run continues from there\n" in out
    assert '"placements": {"count": "executors"}' in out + problems
    until(lambda: not spark_cluster.status()["activeapps"], "the cluster has freed the executors")
    until(lambda: not any(worker.executors() for worker in spark_cluster.workers), "the executors have ended")
    read = trident("get", "counting:endless", "count", "the", "--json", cwd=folder)
    assert f'"txid": {txid}, "values": [{{"key": ["the"], "value": {2 * txid}}}]' in read.stdout


@pytest.mark.long
def test_the_example_of_the_page_runs_as_it_is_typed(
    spark_cluster: SparkCluster, tmp_path: Path, redis_server: Server, archive: Path
) -> None:
    page = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    program, commands = re.findall(r"^```(?:python|sh)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[:2]
    (tmp_path / "word_counts.py").write_text(program.replace("localhost:6379", redis_server.address), encoding="utf-8")
    run, get = (shlex.split(one) for one in commands.replace("spark://localhost:7077", spark_cluster.url).splitlines())
    environment = (
        "--conf",
        f"spark.archives={archive}#environment",
        "--conf",
        "spark.pyspark.python=./environment/bin/python",
    )
    done = trident(*run[1:], *environment, cwd=tmp_path, timeout_s=_LIMIT_S)
    assert (done.returncode, "complete: 2 batches with 4 tuples" in done.stdout) == (0, True), done.stderr
    read = trident(*get[1:], "--json", cwd=tmp_path)
    assert '{"key": ["the"], "value": 4}, {"key": ["moon"], "value": 1}' in read.stdout
