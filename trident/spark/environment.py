"""What must be there before Spark can start: a Java that is new enough, and one Python for driver and workers."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trident.errors import EnvironmentProblem, describe

if TYPE_CHECKING:
    from pyspark import SparkContext

MINIMUM_JAVA = 17
_ANSWER_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 5.0
_MASTER = re.compile(r"^\s*spark\.master[\s=:]+(\S+)", re.MULTILINE)
_INSTALL = (
    f"Install a Java runtime of version {MINIMUM_JAVA} or newer (Debian and Ubuntu: `apt-get install "
    f"openjdk-{MINIMUM_JAVA}-jre-headless`; Fedora: `dnf install java-{MINIMUM_JAVA}-openjdk-headless`; macOS: "
    f"`brew install openjdk@{MINIMUM_JAVA}`), or set JAVA_HOME to the folder of one"
)
_LOCAL = re.compile(r"local(\[\s*(?P<slots>\d+|\*)\s*(,\s*\d+\s*)?\])?")
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?[^"]*"')
_RELEASE = re.compile(r'^JAVA_VERSION="((\d+)(?:\.(\d+))?[^"]*)"', re.MULTILINE)


@dataclass(frozen=True)
class JavaVersion:
    """The Java that Spark will run on."""

    major: int  # 8, 11, 17, 21 …
    text: str  # the first line that `java -version` prints; of `look_at_java` the version alone
    path: Path  # the program that was asked


def check_java() -> JavaVersion:
    """Return the Java that Spark's own scripts would start; `EnvironmentProblem`: none that answers and is new enough."""
    path = _find_java()
    try:
        done = subprocess.run(
            [path, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # most Javas answer on stderr
            timeout=_ANSWER_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem.of_now(
            f"`{path} -version` gave no answer within {_ANSWER_TIMEOUT_S:g} s. {_INSTALL}"
        ) from None
    except OSError as error:
        raise EnvironmentProblem(f"`{path} -version` cannot be run: {describe(error)}. {_INSTALL}") from error
    answer = done.stdout.decode(errors="replace")
    match = _VERSION.search(answer)
    if match is None:
        said = answer.strip() or "nothing"
        raise EnvironmentProblem(f"`{path} -version` does not say which Java it is; it printed {said!r}. {_INSTALL}")
    line = next(line for line in answer.splitlines() if _VERSION.search(line))
    return _new_enough(match[1], match[2], line.strip(), path)


def look_at_java() -> tuple[Path, JavaVersion | None]:
    """Return the program that `check_java` asks, and what the files beside it say of its version, if there are any."""
    path = _find_java()
    try:
        told = (path.resolve().parents[1] / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        told = ""
    match = _RELEASE.search(told)
    return path, None if match is None else _new_enough(match[2], match[3], match[1], path)


def _new_enough(first: str, second: str | None, text: str, path: Path) -> JavaVersion:
    major = int(second or 0) if first == "1" else int(first)  # Java 8 calls itself 1.8
    if major < MINIMUM_JAVA:
        raise EnvironmentProblem(
            f"Spark needs Java {MINIMUM_JAVA} or newer, and {path} is Java {major} ({text}). {_INSTALL}"
        )
    return JavaVersion(major, text, path)


def pin_worker_python(asked: str | None = None) -> None:
    """Let Spark's workers run the driver's Python, unless the environment, or `asked`, names another."""
    # `asked` is the setting spark.pyspark.python, which PySpark heeds in spark-submit only.
    if asked:
        os.environ["PYSPARK_PYTHON"] = asked
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def pin_python_of(context: SparkContext) -> None:
    """Let the workers of a local Spark that is on already run the driver's Python, unless PYSPARK_PYTHON is set."""
    # PySpark takes the `python3` on PATH, which is another one if the driver's environment is not activated.
    if str(context.master).startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable


def is_spark_on() -> bool:
    """Whether this process has a Spark. Not "an active session": a Spark of another thread is not ours to stop."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None  # noqa: SLF001  PySpark has no public question


def is_local(master: str) -> bool:
    return _LOCAL.fullmatch(master) is not None


def local_slots(master: str, jvm: Any) -> int | None:
    """Return how many tasks a local master runs at once, by the cores that its JVM has if it asks for all; else None."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        return None
    if found["slots"] == "*":
        return int(jvm.java.lang.Runtime.getRuntime().availableProcessors())
    return int(found["slots"] or 1)


def master_of(asked: str | None) -> str:
    """Return the master that Spark runs with, or will run with, if a program asks for that one or (None) for none."""
    from pyspark import SparkConf, SparkContext

    active = SparkContext._active_spark_context  # noqa: SLF001  PySpark has no public question
    if active is not None:
        return active.master or ""
    if asked:
        return asked
    if os.environ.get("PYSPARK_GATEWAY_PORT"):  # under spark-submit the JVM is there, and has read all that may say it
        SparkContext._ensure_initialized()  # noqa: SLF001  as above
        return SparkConf(_jvm=SparkContext._jvm).get("spark.master") or ""  # noqa: SLF001  as above
    said = _submit_options("--master") or [
        value
        for name, _, value in (pair.partition("=") for pair in _submit_options("--conf", "-c"))
        if name == "spark.master"
    ]
    return (said or _MASTER.findall(_defaults()) or [os.environ.get("MASTER") or "local[*]"])[-1]


def _submit_options(*names: str) -> list[str]:
    """Return what PYSPARK_SUBMIT_ARGS gives an option of spark-submit, as `--name value` or `--name=value`."""
    words = [
        part
        for word in shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
        for part in (word.split("=", 1) if word.startswith("--") else [word])
    ]
    return [value for name, value in pairwise(words) if name in names]


def _defaults() -> str:
    folder, files = conf_folder(), _submit_options("--properties-file")
    path = Path(files[-1]) if files else None if folder is None else folder / "spark-defaults.conf"
    return path.read_text(encoding="utf-8", errors="replace") if path is not None and path.is_file() else ""


def conf_folder() -> Path | None:
    folder, home = os.environ.get("SPARK_CONF_DIR"), os.environ.get("SPARK_HOME")
    return Path(folder) if folder else Path(home, "conf") if home else None


def executors_of(context: SparkContext) -> list[Any]:
    """Return what Spark knows of its executors; the driver is one of them."""
    found = context._jsc.sc().statusStore().executorList(True)  # noqa: SLF001  PySpark has no public question
    return [found.apply(at) for at in range(found.size())]


def check_master(master: str) -> None:
    """Connect to a standalone master; Spark itself would try for a minute, and then fail with something else."""
    if not master.startswith("spark://"):
        return
    problems = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        if not (problem := unreachable(host.strip("[]"), port)):
            return
        problems.append(f"{address}: {problem}")
    raise EnvironmentProblem.of_now(
        f"no Spark master answers at {master} ({'; '.join(problems)}). Is that its address? The master shows it at the top of "
        "its page, as in spark://host:7077"
    )


def unreachable(host: str, port: str | int) -> str:
    """Return why nothing answers at an address; empty: something does."""
    try:
        with socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S):
            return ""
    except (OSError, ValueError, OverflowError) as error:  # a port may be too large
        return describe(error)


def _find_java() -> Path:
    home = os.environ.get("JAVA_HOME")
    if home:
        path = Path(home, "bin", "java")
        if not os.access(path, os.X_OK):
            raise EnvironmentProblem(f"JAVA_HOME is {home!r}, but there is no program {path}. {_INSTALL}")
        return path
    found = shutil.which("java")
    if found is None:
        raise EnvironmentProblem(f"Spark needs Java; JAVA_HOME is not set and no `java` is on PATH. {_INSTALL}")
    return Path(found)
