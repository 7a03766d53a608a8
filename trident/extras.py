"""Packages that only some uses need: which they are, and what to install if one is missing."""

import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from trident.errors import ConfigError, EnvironmentProblem, describe

MINIMUM_PYSPARK = (3, 5)
_OURS = ("", "trident", "states", "spouts")


class Extra:
    """What an extra brings, or a package of your own: an entry point in `trident.stores` or `trident.spouts` names one.

    `packages`: the module that each package is imported by.
    `names`, `more`: the states, spouts and bolts that need it, and what else does.
    """

    # Not a dataclass: to make one takes longer than all else here, in each process that imports Trident.
    def __init__(self, packages: Mapping[str, str], names: tuple[str, ...] = (), more: str = "") -> None:
        if isinstance(packages, str) or isinstance(names, str):
            like = "packages={'apsw': 'apsw'}, names=('SQLiteState',)"
            raise ConfigError(f"Extra({packages!r}, {names!r}): give a dict and a tuple, as {like}")
        self.packages, self.names, self.more = packages, names, more

    @property
    def uses(self) -> str:
        """What needs the packages, in a line."""
        return ", ".join([*self.names, *filter(None, [self.more])])


def _brings(packages: str, names: str = "", more: str = "") -> Extra:
    """Return the extra with packages, needed by these names; a package's module has its name where nothing else is known."""
    modules = {package: _MODULES.get(package, package.replace("-", "_")) for package in packages.split()}
    return Extra(modules, tuple(names.split()), more)


_MODULES = {
    "pyzmq": "zmq", "cassandra-driver": "cassandra.cluster", "kazoo": "kazoo.client", "grpcio": "grpc",
    "grpcio-status": "grpc_status", "googleapis-common-protos": "google.rpc",
}  # fmt: skip
_HTTP = "starlette uvicorn uvloop"
EXTRAS = {
    "cli": _brings("typer rich", more="the command trident"),
    "spark": _brings("pyspark pyzmq", "DataFrameSpout StructuredStreamingSpout", "topologies on Spark"),
    "delta": _brings("deltalake pyarrow", "DeltaState DeltaSpout", "trident demo"),
    "redis": _brings("redis hiredis", "RedisState TransactionalRedisStreamSpout RedisStreamRichSpout RedisStreamBolt"),
    "memcached": _brings("pymemcache", "MemcachedState"),
    "cassandra": _brings("cassandra-driver", "CassandraState"),
    "postgres": _brings("psycopg", "PostgresState", "a log or a cluster in PostgreSQL"),
    "kafka": _brings(
        "confluent-kafka fastavro", "KafkaTopicState OpaqueTridentKafkaSpout TransactionalTridentKafkaSpout KafkaSpout"
    ),
    "zookeeper": _brings("kazoo", more="a log or a cluster in ZooKeeper"),
    "object-store": _brings("obstore", more="a log in an object store"),
    "sketches": _brings("datasketches", more="CountDistinct(approximate=True)"),
    "sql": _brings("sqlglot", more="SQL text in where, select and group_by"),
    "drpc": _brings(_HTTP, more="requests over HTTP"),
    "metrics": _brings("prometheus-client", more="metrics_port"),
    "storm": _brings("pyzmq", more="spouts and bolts on Spark"),
    "connect": _brings("grpcio grpcio-status googleapis-common-protos zstandard", more="topologies on Spark Connect"),
    "ui": _brings(f"{_HTTP} httpx", more="the page of a topology: ui_port, trident run --ui"),
    "cluster": _brings(f"{_HTTP} httpx kazoo psutil", more="trident up, trident submit"),
}
ALWAYS = _brings(
    "pyarrow numpy msgpack cloudpickle",
    "MemoryMapState TextFileSpout CsvFileSpout JsonFileSpout ParquetFileSpout FixedBatchSpout FeederBatchSpout RateSpout "
    "StateChangesSpout",
)


@contextmanager
def needs_package(what: str, extra: str, package: str = "", module: str = "") -> Iterator[None]:
    """Import packages inside of this; `EnvironmentProblem` if one is missing.

    `what`, `extra`: for the message: "a log in ZooKeeper", and the extra that brings it, or what else is to be installed.
    `package`, `module`: the package that is meant, any by default, and the name that it is imported by, if not its own: an
    import that fails for another module raises that error.
    """
    try:
        yield
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in _OURS or (package and missing != (module or package)):
            raise
        install = f"trident-spark[{extra}]" if extra in EXTRAS else extra
        raise EnvironmentProblem(
            f"{what} needs the package {package or missing} ({error}); pip install '{install}'"
        ) from error


def pyspark_version() -> str | None:
    """Return the version of PySpark without importing it; a platform's need not be a package that pip knows."""
    spec = importlib.util.find_spec("pyspark")
    get_data = getattr(spec and spec.loader, "get_data", None)  # also of a zip: spark-submit's PySpark is one
    if spec is None or get_data is None or not spec.submodule_search_locations:
        return None
    text = get_data(str(Path(spec.submodule_search_locations[0], "version.py"))).decode()
    found = re.search(r"""^__version__.*=\s*["']([^"']+)""", text, re.MULTILINE)
    return None if found is None else found[1]


def check_pyspark(otherwise: str) -> str:
    """Return the version of PySpark; `EnvironmentProblem` if there is none that will do, with what runs without Spark."""
    version, least = pyspark_version(), ".".join(map(str, MINIMUM_PYSPARK))
    if version is None:
        raise EnvironmentProblem(
            f"running on Spark takes PySpark {least} or newer, and {sys.executable} has none. Run it with the Python or the "
            "spark-submit of your platform, or, where none brings Spark: pip install 'trident-spark[spark]'. "
            f"Without Spark: {otherwise}"
        )
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < MINIMUM_PYSPARK:
        raise EnvironmentProblem(
            f"running on Spark takes PySpark {least} or newer, and {sys.executable} has {version}. Install a newer "
            f"one: pip install 'trident-spark[spark]'. Without Spark: {otherwise}"
        )
    try:
        from pyspark import SparkContext  # noqa: F401  only to see whether it can be
    except ImportError as error:
        raise EnvironmentProblem(
            f"PySpark {version} cannot be imported by {sys.executable}: {describe(error)}. Install it again: "
            f"pip install --force-reinstall --no-cache-dir pyspark=={version}. Without Spark: {otherwise}"
        ) from error
    return version
