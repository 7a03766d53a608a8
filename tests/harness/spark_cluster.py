"""A standalone Spark cluster for tests: a master and its workers, a process each, which a test kills one by one.

The environment of the processes is bare: no PYTHONPATH leads to this project, and no Python environment is activated, as on
the machines of a cluster.
"""

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
from tests.harness.servers import Server, Servers, free_ports, program

_MEMORY = "1g"  # of a worker: of the one executor that a program gets there


class SparkNode(Server):
    """The master or a worker, whose port answers before the master knows it."""

    _kills_below = True

    def executors(self) -> list[psutil.Process]:
        return [one for one in psutil.Process(self.pid).children() if one.status() != psutil.STATUS_ZOMBIE]


class SparkCluster(Servers):
    """All processes of a cluster; `url` is the master, as programs name it."""

    def __init__(self, url: str, status_port: int, master: SparkNode, workers: Sequence[SparkNode]) -> None:
        super().__init__(workers, [master])
        self.url, self.workers, self._status_port = url, workers, status_port

    def status(self) -> dict[str, Any]:
        """Return what the master says of itself: `workers`, `activeapps`, `completedapps` …"""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._status_port}/json/", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


def start_spark_cluster(
    work: Path, workers: int = 2, cores: int = 1, home: Path | None = None, apart: bool = False
) -> SparkCluster:
    """Start a cluster; takes about 3 seconds.

    `cores`: how many tasks each worker runs at once.
    `home`: Spark's own folder; that of PySpark in this environment by default.
    `apart`: give each worker an address of its own: Spark starts a copy of a slow task on another host only.
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
    bare = spark_class(
        home, SPARK_LOCAL_DIRS=work, SPARK_DAEMON_MEMORY="192m",
        SPARK_DAEMON_JAVA_OPTS="-Dspark.master.rest.enabled=false",
        JDK_JAVA_OPTIONS=QUICK_JVM,  # of the executors too, which a worker starts
    )  # fmt: skip
    argv = [*bare, f"org.apache.spark.deploy.{main}", *arguments]
    return SparkNode(f"Spark's {main}", argv, port, work, said, grace=10.0)


def spark_class(home: Path, **variables: object) -> list[object]:
    """Return the command that runs a class of Spark's in a bare environment, with these variables."""
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME", "LANG", "TMPDIR") if name in os.environ}
    path = f"{Path(program('java')).parent}{os.pathsep}{os.defpath}"
    # By `env`, so that nothing else is handed on; both it and the script end in the program that they start.
    words = (f"{name}={value}" for name, value in {**kept, "PATH": path, "SPARK_HOME": home, **variables}.items())
    return ["/usr/bin/env", "-i", *words, home / "bin" / "spark-class"]
