"""A standalone Spark cluster for tests: a master and its workers, a process each, which a test kills one by one.

The environment of the processes is bare: no PYTHONPATH leads to this project, and no Python environment is activated, as on
the machines of a cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pyspark

from tests.harness.quick_java import QUICK_JVM
from tests.harness.servers import Server, free_ports, program

_MEMORY = "1g"  # of a worker: of the one executor that a program gets there


class SparkNode(Server):
    """The master or a worker; ready when it says so, because a worker's port answers before the master knows it."""

    def __init__(self, name: str, said: bytes, argv: Sequence[object], port: int, work: Path) -> None:
        self._log, self._said, self._logged = work / "server.log", said, 0
        super().__init__(name, argv, port, work, lambda _: self._says_ready(), grace=10.0)

    def start(self) -> None:
        self._logged = self._log.stat().st_size if self._log.exists() else 0
        super().start()

    def executors(self) -> list[psutil.Process]:
        """Return the executors of a worker."""
        return [one for one in psutil.Process(self.pid).children() if one.status() != psutil.STATUS_ZOMBIE]

    def kill(self) -> None:
        children = psutil.Process(self.pid).children(recursive=True) if self.runs else []
        super().kill()
        for child in children:  # an executor would look for its worker for a while
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def _says_ready(self) -> bool:
        with self._log.open("rb") as log:
            log.seek(self._logged)
            return self._said in log.read()


class SparkCluster:
    """All processes of a cluster.

    Attributes
    ----------
    url
        The master, as programs name it.
    workers
        Each can be killed and started again.
    """

    def __init__(self, url: str, status_port: int, master: SparkNode, workers: Sequence[SparkNode]) -> None:
        self.url, self.workers = url, workers
        self._status_port, self._master = status_port, master

    def status(self) -> dict[str, Any]:
        """Return what the master says of itself: `workers`, `activeapps`, `completedapps` …"""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._status_port}/json/", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def stop(self) -> None:
        """End all processes, executors included."""
        for node in (*self.workers, self._master):
            node.kill()  # in order it would take seconds


def start_spark_cluster(
    work: Path, workers: int = 2, cores: int = 1, home: Path | None = None, apart: bool = False
) -> SparkCluster:
    """Start a cluster; takes about 3 seconds.

    Parameters
    ----------
    work
        Its folder.
    workers, cores
        How many workers, and how many tasks each runs at once.
    home
        Spark's own folder; that of PySpark in this environment by default.
    apart
        Give each worker an address of its own: Spark starts a copy of a slow task on another host only.
    """
    home = home or Path(pyspark.__file__).parent
    port, status_port = free_ports(2)
    master = _start_node(
        work / "master", home, "master.Master", port, b"I have been elected leader",
        "--host", "127.0.0.1", "--port", port, "--webui-port", status_port,
    )  # fmt: skip
    url = f"spark://127.0.0.1:{port}"

    def start_worker(number: int) -> SparkNode:
        host, (own, shown) = f"127.0.0.{number if apart else 1}", free_ports(2)
        return _start_node(
            work / f"worker{number}", home, "worker.Worker", own, b"Successfully registered with master",
            "--host", host, "--port", own, "--webui-port", shown, "--cores", cores, "--memory", _MEMORY,
            "--work-dir", work / f"worker{number}", url,
        )  # fmt: skip

    try:
        with ThreadPoolExecutor(workers) as together:
            return SparkCluster(url, status_port, master, [*together.map(start_worker, range(1, workers + 1))])
    except BaseException:
        master.kill()
        raise


def _start_node(work: Path, home: Path, main: str, port: int, said: bytes, *arguments: object) -> SparkNode:
    work.mkdir(parents=True)
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME", "LANG", "TMPDIR") if name in os.environ}
    variables = {
        **kept,
        "PATH": f"{Path(program('java')).parent}{os.pathsep}{os.defpath}",
        "SPARK_HOME": home,
        "SPARK_LOCAL_DIRS": work,
        "SPARK_DAEMON_MEMORY": "192m",
        "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false",
        "JDK_JAVA_OPTIONS": QUICK_JVM,  # of the executors too, which a worker starts
    }
    # By `env`, so that nothing else is handed on; both it and the script end in the program that they start.
    bare = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in variables.items())]
    argv = [*bare, home / "bin" / "spark-class", f"org.apache.spark.deploy.{main}", *arguments]
    return SparkNode(f"Spark's {main}", said, argv, port, work)
