"""Spouts and bolts on a standalone cluster, one of whose machines goes away."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.commands import started, trident, until, write_module
from tests.harness.spark_cluster import SparkCluster, start_spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

_MODULE = """
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
    cluster = start_spark_cluster(tmp_path_factory.mktemp("spark"), workers=3)
    yield cluster
    cluster.stop()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    write_module(tmp_path, "numbered", _MODULE)
    write_module(tmp_path, "lines", _LINES.format(folder=str(tmp_path)))
    return tmp_path


def lines(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text().splitlines() if (folder / name).exists() else []


@pytest.mark.long
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


@pytest.mark.soak
def test_fewer_slots_than_workers_are_an_error(spark_cluster: SparkCluster, folder: Path) -> None:
    done = trident(
        "run", "numbered:builder", "--master", spark_cluster.url, "--conf", "workers=4", cwd=folder, timeout_s=200
    )
    assert done.returncode == 1
    assert (
        f"has 4 workers, each of which takes a slot of Spark for as long as it runs, but {spark_cluster.url} has"
        in (done.stderr)
    )
