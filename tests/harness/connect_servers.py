"""A server of Spark Connect for tests, a process of its own, and sessions of it.

Its Python processes import Trident from this project, as those of a server where it is installed.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.errors import PySparkException

from tests.harness.quick_java import QUICK_JVM
from tests.harness.servers import ROOT, Server, free_ports
from tests.harness.spark_cluster import spark_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_WITHOUT = """
import sys
from pathlib import Path

sys.path[:] = [path for path in sys.path if not Path(path, "trident").is_dir()]
"""
_MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer(Server):
    """The server; what its Python processes print is in `server.log` too."""

    _sessions: list[Any]
    _kills_below = True  # a Python process would look for its server for a while

    def start(self) -> None:
        self._sessions = []
        super().start()

    @property
    def url(self) -> str:
        """The address, as programs name it."""
        return f"sc://{self.address}"

    def session(self) -> SparkSession:
        """Return a session of its own. This process may have a classic one beside it, which Spark's builder does not allow."""
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession

        session = SparkSession.builder.remote(self.url).create()
        SparkSession._active_session.session = session  # it may still be one whose server was killed
        session.client.set_retry_policies([DefaultPolicy(max_retries=6, max_backoff=1000)])  # by default: ten minutes
        return session  # type: ignore[return-value]

    def kill(self) -> None:
        for session in self._sessions if self.runs else ():
            session.release_session_on_close = False  # a process would not end while its client asks a dead server
            session.stop()
        super().kill()


def start_connect(work: Path, python_path: Path | None = ROOT, **conf: str) -> ConnectServer:
    """Start a server with two cores; takes about five seconds.

    `work`: its folder, where its processes run too.
    `python_path`: where its Python processes find what is not installed; None: they find nothing of this project.
    `conf`: settings of Spark, with `__` for each dot.
    """
    (port,) = free_ports(1)
    home = Path(pyspark.__file__).parent
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": port,
        "spark.driver.bindAddress": "127.0.0.1", "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": work / "warehouse", "spark.ui.enabled": "false",
        **{name.replace("__", "."): value for name, value in conf.items()},
    }  # fmt: skip
    work.mkdir(parents=True, exist_ok=True)
    python = _python(work, python_path)
    bare = spark_class(home, PYSPARK_PYTHON=python, SPARK_LOCAL_IP="127.0.0.1", SPARK_SUBMIT_OPTS=QUICK_JVM)
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    submit = [*bare, "org.apache.spark.deploy.SparkSubmit", "--master", "local[2]"]
    argv = [*submit, *words, "--class", _MAIN, "spark-internal"]
    return ConnectServer("Spark Connect", argv, port, work, _answers, grace=10.0)


def _python(work: Path, python_path: Path | None) -> Path:
    """Write the Python of the server. Spark leads each process to its zip of PySpark, which is compiled anew each time."""
    if python_path is None:  # an editable install leads to this project
        python_path = work / "without"
        python_path.mkdir()
        (python_path / "sitecustomize.py").write_text(_WITHOUT, encoding="utf-8")
    python = work / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{python_path}" exec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    return python


def started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query with a function; its process has ten seconds to start, too few on a machine that is overloaded."""
    for tries_left in reversed(range(8)):
        try:
            return start()
        except PySparkException as error:
            if not tries_left or "failed to connect back" not in str(error):
                raise
    raise AssertionError("unreachable")


def _answers(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 1):
        return True
