"""`trident run` of spouts and bolts, as its users run it: here, and on a standalone cluster one of whose machines goes away."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.harness.commands import started, trident, until, write_module
from tests.harness.spark_cluster import SparkCluster, start_spark_cluster
from tests.storm.spark.journaled import Journal

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_MODULE = """
    from pathlib import Path
    from tests.storm.spark.journaled import Journal, word_count

    builder = word_count(Journal(Path("journal").absolute()), 1_000_000)
    topology = builder.create_topology()

    def made():
        return builder
"""
_WORDS = ("--conf", "workers=2", "--conf", "max_spout_pending=50")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    write_module(tmp_path, "words", _MODULE)
    return Journal(tmp_path / "journal")


@pytest.mark.long
def test_ctrl_c_stops_spouts_first_and_leaves_nothing(tmp_path: Path, journal: Journal) -> None:
    with started("run", "words:made", *_WORDS, "--master", "local[2]", cwd=tmp_path) as run:
        until(lambda: len(journal.acked()) > 100, "it runs")
        workers = [psutil.Process(pid) for pid in journal.pids()]
        run.signal(signal.SIGINT)
        code, out, problems = run.end()
        assert psutil.wait_procs(workers, 10)[1] == []
        until(lambda: not run.session(), "every process of the run has ended")
    assert code == 130, problems
    acked = len(journal.acked())
    assert f"words: stopped after {acked:,} acknowledged messages; nothing was pending\n" in out
    assert "stopping: spouts first, then what is pending (once more: at once)\n" in problems
    assert "Traceback" not in problems
    assert {int(line[1]) for line in journal.lines() if line[0] == "L"} == journal.acked()


@pytest.mark.long
def test_workers_end_when_their_driver_is_killed(tmp_path: Path, journal: Journal) -> None:
    with started("run", "words:topology", *_WORDS, "--conf", "worker_timeout_s=5", cwd=tmp_path) as run:
        until(lambda: len(journal.acked()) > 100, "it runs")
        workers = [psutil.Process(pid) for pid in journal.pids()]
        run.process.kill()
        assert psutil.wait_procs(workers, 30)[1] == []
        until(lambda: not run.session(), "every process of the run has ended")


@pytest.mark.long
def test_a_missing_package_is_named(tmp_path: Path, journal: Journal) -> None:
    write_module(tmp_path, "sitecustomize", "import sys\nsys.modules['zmq'] = None")
    done = trident("run", "words:builder", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "error: spouts and bolts on Spark need the package pyzmq: pip install 'trident-spark[storm]'." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_options_and_settings_of_batches_are_refused(tmp_path: Path, journal: Journal) -> None:
    once = trident("run", "words:topology", "--once", cwd=tmp_path)
    assert once.returncode == 2
    assert "--once is for Trident topologies; this one has spouts and bolts, and no batches" in once.stderr
    unknown = trident("run", "words:topology", "--conf", "worker=2", cwd=tmp_path)
    assert unknown.returncode == 2
    assert "worker" in unknown.stderr
    none = trident("run", "words:Path", cwd=tmp_path)
    assert none.returncode == 1
    assert "expected a TridentTopology or TopologyBuilder or StormTopology or a function" in none.stderr
    assert not journal.path.exists()


_NUMBERED = """
    import os
    from pathlib import Path
    from lines import append
    from trident.storm import BaseBasicBolt, BaseRichSpout, TopologyBuilder

    class Numbers(BaseRichSpout):
        def open(self, conf, context, collector):
            self.collector, self.number = collector, 0
            append("spout", os.getpid())

        def next_tuple(self):
            self.number += 1
            self.collector.emit([self.number], self.number)

        def ack(self, msg_id):
            append("acked", msg_id)

        def declare_output_fields(self, declarer):
            declarer.declare("number: bigint")

    class Noted(BaseBasicBolt):
        def prepare(self, conf, context):
            append("bolt", os.getpid())

        def execute(self, tuple, collector):
            pass

    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers())
    builder.set_bolt("noted", Noted()).shuffle_grouping("numbers")
"""
_LINES = """
    FOLDER = {folder!r}

    def append(name, line):
        with open(FOLDER + "/" + name, "a") as file:
            file.write(f"{{line}}\\n")
"""


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with start_spark_cluster(tmp_path_factory.mktemp("spark"), workers=3) as cluster:
        yield cluster


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    write_module(tmp_path, "numbered", _NUMBERED)
    write_module(tmp_path, "lines", _LINES.format(folder=str(tmp_path)))
    return tmp_path


def lines(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text().splitlines() if (folder / name).exists() else []


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_machine_that_goes_away_is_replaced_by_another_one(spark_cluster: SparkCluster, folder: Path) -> None:
    words = ("--master", spark_cluster.url, "--conf", "workers=2", "--conf", "max_spout_pending=20")
    limits = ("--conf", "message_timeout_s=3", "--conf", "spark.executor.cores=1", "--conf", "spark.cores.max=2")
    with started("run", "numbered:builder", *words, *limits, cwd=folder) as run:
        until(lambda: len(lines(folder, "acked")) > 100, "it runs")
        used = [node for node in spark_cluster.workers if node.executors()]
        assert len(used) == 2
        used[0].kill()
        until(lambda: len(lines(folder, "spout")) + len(lines(folder, "bolt")) == 3, "its worker is back elsewhere")
        before = len(lines(folder, "acked"))
        until(lambda: len(lines(folder, "acked")) > before + 100, "it goes on")
        run.signal(signal.SIGINT)
        code, out, problems = run.end()
    assert code == 130, problems
    assert "numbered: stopped after " in out
    until(lambda: not any(node.executors() for node in spark_cluster.workers if node.runs), "the executors have ended")
