"""What executors get (code, slots), and what is passed on of what Spark's JVM prints."""

import importlib
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trident
from tests.harness.commands import write_module
from trident.spark import shipping, spark_resources
from trident.spark.job_errors import cannot_import, executor_problem
from trident.spark.session import BrokenPipes, JvmOutput
from trident.spark.spark_resources import Slots


class Cluster:
    """As much of a Spark context as shipping asks for."""

    def __init__(self, master: str = "spark://host:7077") -> None:
        self.master = master
        self.listFiles: list[str] = []
        self.added: list[Path] = []

    def addPyFile(self, path: str) -> None:  # noqa: N802  Spark's name
        self.added.append(Path(path))
        self.listFiles.append(f"spark://driver:4711/files/{Path(path).name}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with a module, a package and a package without `__init__`, all loaded, and a module that is not."""
    write_module(tmp_path, "shipped_module", "from shipped_package.inner import VALUE")
    for package in ("shipped_package", "shipped_namespace"):
        (tmp_path / package).mkdir()
        write_module(tmp_path / package, "inner", f"VALUE = {package!r}")
    write_module(tmp_path / "shipped_package", "__init__", "")
    write_module(tmp_path, "never_loaded", "")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(shipping, "_folders", [])
    for name in ("shipped_module", "shipped_namespace.inner"):
        importlib.import_module(name)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("shipped_")]:
        del sys.modules[name]


def shipped_to(cluster: Cluster) -> Path:
    context: Any = cluster
    shipping.ship_code(context)
    return cluster.added[-1]


def executor(archive: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code as an executor does: with the archive first, and no path that leads to a source."""
    text = f"import sys; sys.path.insert(1, {str(archive)!r}); {code}"
    return subprocess.run(
        [sys.executable, "-I", "-c", text], cwd="/", capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.slow
def test_an_executor_imports_the_drivers_trident_and_the_modules_of_the_folder(folder: Path) -> None:
    shipping.ship_modules_of(folder)
    archive = shipped_to(Cluster())
    modules = "shipped_module, shipped_namespace.inner, trident, states.redis, spouts"
    code = f"import {modules}; print(shipped_module.VALUE, trident.__file__)"
    done = executor(archive, code)
    assert done.stderr == ""
    assert done.stdout == f"shipped_package {archive}/trident/__init__.pyc\n"  # compiled already
    assert "No module named 'never_loaded'" in executor(archive, "import never_loaded").stderr


@pytest.mark.slow
def test_a_traceback_of_an_executor_shows_the_source(folder: Path) -> None:
    archive = shipped_to(Cluster())
    done = executor(archive, "from trident.config import Config; Config.of(engin=1)")
    assert "raise ConfigError(" in done.stderr


@pytest.mark.slow
def test_only_the_folders_that_were_named_are_shipped(folder: Path) -> None:
    before = shipped_to(Cluster())
    shipping.ship_modules_of(folder)
    after = shipped_to(Cluster())
    assert (before != after, before.exists()) == (True, True)


@pytest.mark.long
@pytest.mark.slow
def test_the_same_code_is_shipped_once_and_changed_code_again(folder: Path) -> None:
    shipping.ship_modules_of(folder)
    cluster = Cluster()
    first = shipped_to(cluster)
    assert shipped_to(cluster) == first
    assert len(cluster.added) == 1
    write_module(folder, "shipped_module", "VALUE = 'changed'")
    assert shipped_to(cluster) != first


@pytest.mark.slow
def test_topologies_that_start_side_by_side_ship_the_code_once(folder: Path) -> None:
    shipping.ship_modules_of(folder)
    cluster = Cluster()
    with ThreadPoolExecutor(4) as threads:
        archives = {*threads.map(lambda _: shipped_to(cluster), range(4))}
    assert len(cluster.added) == len(archives) == 1
    assert zipfile.ZipFile(archives.pop()).testzip() is None


@pytest.mark.parametrize("master", ["local", "local[4]", "local-cluster[2,1,1024]"])
def test_nothing_is_shipped_to_workers_of_this_machine(master: str) -> None:
    cluster = Cluster(master)
    context: Any = cluster
    shipping.ship_code(context)
    assert cluster.added == []


def test_the_tridents_that_are_shipped_are_those_that_run() -> None:
    assert ("trident/__init__.py", Path(str(trident.__file__))) in shipping._files()


def test_a_second_topology_ships_the_same_packages_behind_the_firsts_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "_own_files", cache(shipping._own_files.__wrapped__))
    first = [one for one in shipping._files() if one[0].startswith("spouts/")]
    assert first
    archive = tmp_path / "shipped.zip"
    with zipfile.ZipFile(archive, "w") as target:
        target.writestr("spouts/__init__.py", "")
    monkeypatch.syspath_prepend(str(archive))
    monkeypatch.delitem(sys.modules, "spouts", raising=False)
    assert [one for one in shipping._files() if one[0].startswith("spouts/")] == first


_LOST = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent "
    "failure: Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 executor 0): "
)
_TRACE = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1100, in main
"""
_MISMATCH = (
    "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version{} "
    "than that in driver{}, PySpark cannot run with different minor versions.\n"
)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (
            _LOST + _TRACE + _MISMATCH.format(" (3, 12)", " 3.11"),
            "the executor on host 10.0.0.7 runs Python 3.12, the driver Python 3.11; both must be of the same minor version",
        ),
        (_TRACE + _MISMATCH.format(": 3.12", ": 3.11"), "the executor on host 10.0.0.8 runs Python 3.12, the driver "),
        (
            _LOST + 'java.io.IOException: Cannot run program "/nowhere/python": error=2, No such file or directory\n\tat java',
            "the executor on host 10.0.0.7 cannot run /nowhere/python: No such file or directory. Let PYSPARK_PYTHON or ",
        ),
        (
            _LOST + _TRACE + "ModuleNotFoundError: No module named 'pyarrow'\n\n\tat org.apache",
            "the executor on host 10.0.0.7 cannot import pyarrow: No module named 'pyarrow'. Install it there for ",
        ),
        (
            _TRACE + "ImportError: libarrow.so.2500: cannot open shared object file\n",
            "the executor on host 10.0.0.8 cannot import a module: libarrow.so.2500: cannot open shared object file",
        ),
        (
            "org.apache.spark.SparkException: \nError from python worker:\n  /usr/bin/python3: Error while finding module "
            "specification for 'trident.spark.worker_daemon' (ModuleNotFoundError: No module named 'trident')\n",
            "the executor on host 10.0.0.8 cannot import trident: No module named 'trident'. Install it there for ",
        ),
    ],
)  # fmt: skip
def test_an_executor_whose_python_does_not_do_is_named_with_the_way_out(said: str, text: str) -> None:
    problem = executor_problem(said, lambda: ["10.0.0.8", "10.0.0.8"])
    assert problem is not None
    assert str(problem).startswith(text)
    assert str(problem).endswith("as in ./environment/bin/python; see docs/deploying.md")


def test_no_host_is_named_where_none_is_known() -> None:
    assert str(executor_problem(_TRACE + "ImportError: x")).startswith("an executor cannot import a module: x")


@pytest.mark.parametrize(
    "said",
    [
        _LOST + "ExecutorLostFailure (executor 0 exited caused by one of the running tasks) Reason: worker lost",
        _LOST + _TRACE + "ValueError: what a function says of an ImportError: none",
    ],
)
def test_another_failure_of_a_job_is_not_one_of_the_environment(said: str) -> None:
    assert executor_problem(said) is None


def test_a_worker_names_its_host_and_the_module_that_it_lacks() -> None:
    with pytest.raises(ModuleNotFoundError) as raised:
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401
    said = str(cannot_import(raised.value))
    assert (
        " cannot import no_such_module: No module named 'no_such_module'. A module of yours: trident run ships it"
        in said
    )
    assert "--py-files" in said


WORKER = b"""Traceback (most recent call last):
  File "/venv/lib/pyspark/python/lib/pyspark.zip/pyspark/daemon.py", line 262, in manager
  File "/venv/lib/pyspark/python/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
"""
FLUSH = b"""PySpark daemon failed to flush the output to the worker process:
Traceback (most recent call last):
  File "/venv/lib/pyspark/python/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker
    outfile.flush()
ConnectionResetError: [Errno 104] Connection reset by peer

During handling of the above exception, another exception occurred:

"""
USERS = b"""Traceback (most recent call last):
  File "/venv/lib/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line 9, in main
  File "job.py", line 7, in send
BrokenPipeError: [Errno 32] Broken pipe
"""
OTHER = WORKER.replace(b"BrokenPipeError", b"ValueError")


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_traces_of_broken_pipes_are_left_out_however_they_come(size: int) -> None:
    said = b"one\n" + WORKER + b"two\n\n" + FLUSH + WORKER + USERS + OTHER + b"three\n" + WORKER + b"four"
    shown = BrokenPipes()
    pieces = b"".join(shown(said[at : at + size]) for at in range(0, len(said), size))
    assert pieces + shown.end() == b"one\ntwo\n\n" + USERS + OTHER + b"three\nfour"


def test_a_line_without_an_end_is_shown_at_once_and_half_a_trace_at_the_end() -> None:
    shown = BrokenPipes()
    assert shown(b"50 %") == b"50 %"
    assert shown(b" 60 %\nTrace") == b" 60 %\n"
    assert shown(b"d\n" + WORKER[:80]) == b"Traced\n"
    assert shown.end() == WORKER[:80]


def test_what_the_jvm_prints_is_passed_on_without_such_traces(capfd: pytest.CaptureFixture[str]) -> None:
    others = set(threading.enumerate())
    output = JvmOutput()
    (reader,) = set(threading.enumerate()) - others
    end = os.dup(output.write_end)
    output.release()
    os.write(end, b"one\n" + WORKER + b"two\n" + WORKER[:60])
    os.close(end)
    reader.join(10)
    assert capfd.readouterr().err == "one\ntwo\n" + WORKER[:60].decode()


def test_slots_are_counted_when_the_first_executor_has_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    registering = [[], [], [SimpleNamespace(id=lambda: "0", totalCores=lambda: 8)]]
    monkeypatch.setattr(
        spark_resources, "executors_of", lambda context: registering.pop(0) if registering[1:] else registering[0]
    )
    conf = SimpleNamespace(get={"spark.task.cpus": "1"}.get)
    context = SimpleNamespace(master="spark://host:7077", applicationId="app", getConf=lambda: conf, _jvm=None)
    slots = Slots(context, "counts")  # type: ignore[arg-type]
    assert slots.take_free(4) == 4
    slots.release()
