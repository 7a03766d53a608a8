"""Packages that only some uses need: if one is missing, the error says what to install."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trident.errors import EnvironmentProblem, describe

MINIMUM_PYSPARK = (3, 5)
_OURS = ("", "trident", "states", "spouts")


@contextmanager
def needs_package(what: str, extra: str, package: str = "", module: str = "") -> Iterator[None]:
    """Import packages inside of this; `EnvironmentProblem` if one is missing.

    `what`, `extra`: for the message: "a log in ZooKeeper", and the extra of this package that brings what is missing.
    `package`, `module`: the package, and the name that it is imported by, if it is not its own: an import that fails for
    another module raises that error. By default any package that is missing is meant.
    """
    try:
        yield
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in _OURS or (package and missing != (module or package)):
            raise
        raise EnvironmentProblem(
            f"{what} needs the package {package or missing} ({error}); pip install 'trident-spark[{extra}]'"
        ) from error


def pyspark_version() -> str | None:
    """Return the version of the PySpark that an import would give, without importing it; None if there is none.

    It is read from PySpark itself: that of a platform need not be a package that pip knows.
    """
    spec = importlib.util.find_spec("pyspark")
    get_data = getattr(spec and spec.loader, "get_data", None)  # also of a zip: spark-submit's PySpark is one
    if spec is None or get_data is None or not spec.submodule_search_locations:
        return None
    text = get_data(str(Path(spec.submodule_search_locations[0], "version.py"))).decode()
    found = re.search(r"""^__version__.*=\s*["']([^"']+)""", text, re.MULTILINE)
    return None if found is None else found[1]


def check_pyspark(otherwise: str) -> str:
    """Return the version of PySpark.

    `otherwise`: for the message: what runs without Spark.
    Raises `EnvironmentProblem`: there is none, it is older than `MINIMUM_PYSPARK`, or it cannot be imported.
    """
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
