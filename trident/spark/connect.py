"""Spark Connect, whose sessions have neither RDDs nor a SparkContext: its objects, servers and errors."""

from __future__ import annotations

import os
import re
import sys
import types
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trident.errors import ConfigError, EnvironmentProblem, describe
from trident.roles import close_on_error
from trident.spark.environment import is_spark_on, unreachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ENDED = re.compile(r"INVALID_HANDLE\.(SESSION_\w+)|INVALID_HANDLE\.OPERATION_(?:ABANDONED|NOT_FOUND)")
_NO_ANSWER = re.compile(r"StatusCode\.UNAVAILABLE|RETRIES_EXCEEDED|failed to connect to all addresses")
_TOO_LARGE = re.compile(
    r"(?:message larger than max|MessageSize|exceeds maximum)\D*(\d+)(?:\s*vs\.?\s*(\d+))?", re.IGNORECASE
)
_LASTING = ("/Volumes/", "/Workspace/", "/dbfs/")  # what Databricks mounts
_GO_ON = "Nothing is lost: get a new session, and start again with the same log and checkpoint"
PAGE = "docs/deploying.md#spark-connect"
_SCHEME, _PORT, _SERVER = "sc://", 15002, "SPARK_REMOTE"
_DEFAULT_SHUFFLE = 200  # Spark's own, which is far too many tasks for a batch


def is_connect(of: Any) -> bool:
    return type(of).__module__.startswith("pyspark.sql.connect")


def connect_problem(said: str) -> EnvironmentProblem | None:
    """Return the error for what Spark says of a failed operation, if it is one of Spark Connect; else None."""
    if found := _ENDED.search(said):
        return EnvironmentProblem.of_now(
            f"the session of Spark Connect has ended on its server ({found[0]}): it was released, it was not used for longer "
            "than the server keeps one (spark.connect.session.manager.defaultSessionTimeout), or the server was started again. "
            f"{_GO_ON}"
        )
    if "RESOURCE_EXHAUSTED" in said and (sizes := _TOO_LARGE.search(said)):
        return EnvironmentProblem(
            f"a plan or a result of {sizes[1]} bytes is larger than a message of Spark Connect may be: what an operation "
            "closes over goes along with each batch. Load large data in prepare(conf, context), or raise the server's "
            f"spark.connect.grpc.maxInboundMessageSize; see {PAGE}"
        )
    if _NO_ANSWER.search(said):
        return EnvironmentProblem.of_now(
            f"the server of Spark Connect does not answer any more. Start it again. {_GO_ON}"
        )
    return None


def check_lasting(folder: str, variables: Mapping[str, str] = os.environ) -> None:
    """Refuse a log on the disk of a serverless machine of Databricks, which goes with it; elsewhere it cannot be known."""
    if not variables.get("DATABRICKS_RUNTIME_VERSION", "").startswith("client.") or "://" in folder:
        return
    if not str(PurePosixPath(folder)).startswith(_LASTING):
        raise ConfigError(
            f"log_dir={folder!r} is on the disk of a serverless machine, and gone with it: put the log where the checkpoint is "
            "safe too, such as log_dir='zookeeper://…' or a folder in /Volumes/…"
        )


def _call_unpickled(data: bytes) -> Any:
    """Call the function that is pickled first with what is pickled behind it."""
    import pickle
    import sys

    try:
        make, *given = pickle.loads(data)
    except ModuleNotFoundError as error:
        module = str(error.name).partition(".")[0]
        package = f"trident-spark (which has {module})" if module in ("trident", "states", "spouts") else module
        raise ModuleNotFoundError(
            f"the function for foreachBatch runs on the server of Spark Connect, whose Python {sys.executable} has no module "
            f"{error.name!r}: install {package} there, with the extras of your stores; see docs/deploying.md#spark-connect"
        ) from None
    return make(*given)


unpickled = types.FunctionType(_call_unpickled.__code__, {"__builtins__": __builtins__})
"""Makes what was pickled, on a server that may lack Trident; so it is itself pickled whole, as of the main module."""
unpickled.__module__ = "__main__"


def server_of(master: str | None, conf: Mapping[str, str]) -> str | None:
    """Return the server that a topology is to run on, empty for that of the active session; None if it is to be classic."""
    asked = master or conf.get("spark.master") or conf.get("spark.remote") or ""
    if asked.startswith(_SCHEME):
        return asked
    if asked or ("pyspark" not in sys.modules and _SERVER not in os.environ):
        return None
    from pyspark.sql.utils import is_remote

    if is_remote():
        return ""
    found = os.environ.get(_SERVER, "")
    return found if found.startswith(_SCHEME) and not is_spark_on() else None


def connect_session(server: str, conf: Mapping[str, str]) -> tuple[SparkSession, bool]:
    """Return a session, and whether it is new; `server` empty: the active one."""
    # Of `conf` a session that is new gets those that a session may have.
    try:
        from pyspark.sql.connect.session import SparkSession
    except ImportError as error:
        raise EnvironmentProblem(f"Spark Connect: {describe(error)}; pip install 'trident-spark[connect]'") from error
    if not server:
        active = SparkSession.getActiveSession() or SparkSession._default_session  # noqa: SLF001  of another thread
        if active is None or active.is_stopped:
            raise EnvironmentProblem.of_now("the session of Spark Connect was stopped: get a new one, and start again")
        return _with_settings(active, conf), False
    check_server(server)
    session = SparkSession.builder.remote(server).create()
    with close_on_error(session.stop):
        return _with_settings(session, {"spark.sql.adaptive.enabled": "false", **conf}), True


def stop_connect(session: SparkSession, server: str) -> None:
    """End a session that is new; that of a server that is gone at once, because PySpark would ask it for ten minutes."""
    try:
        check_server(server)
    except EnvironmentProblem:
        session.release_session_on_close = False  # type: ignore[attr-defined]
    session.stop()


def _with_settings(session: Any, conf: Mapping[str, str]) -> SparkSession:
    from pyspark.errors import PySparkException

    for key, value in conf.items():
        if key in ("spark.master", "spark.remote"):
            continue
        try:
            if session.conf.get(key, None) != value:
                session.conf.set(key, value)
        except PySparkException as error:
            raise ConfigError(
                f"{key} cannot be set for a session of Spark Connect: set it where the server is started ({describe(error)})"
            ) from error
    return session  # type: ignore[no-any-return]


def width_of(session: SparkSession, cores: int) -> int:
    """Return how many partitions an exchange has that declares none: those of the session, or as many as there are cores."""
    asked = int(session.conf.get("spark.sql.shuffle.partitions", None) or _DEFAULT_SHUFFLE)
    return cores if asked == _DEFAULT_SHUFFLE else asked


def check_server(server: str) -> None:
    """Connect to a server; PySpark itself would try for ten minutes."""
    # The address is shown without its parameters, which may hold a token.
    try:
        found = urlsplit(server)
        host, port = found.hostname or "", found.port or _PORT
    except ValueError as error:
        raise ConfigError(f"the address of Spark Connect is none: {error}; give it as sc://HOST:{_PORT}") from error
    if problem := unreachable(host, port):
        raise EnvironmentProblem.of_now(
            f"no server of Spark Connect answers at sc://{host}:{port} ({problem}). Is that its address? Start one with "
            f"Spark's sbin/start-connect-server.sh; it answers on port {_PORT} unless it is told another one"
        )
