"""The process that forks Spark's Python workers: what it imports, what its forks keep of that, and who runs it."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from trident.spark import worker_daemon

pytestmark = pytest.mark.slow

_FORK = """
import os, sys
from functools import partial
from trident.spark import worker_daemon
{before}
worker_daemon.import_what_workers_need()
os.register_at_fork(after_in_child=partial(worker_daemon._after_fork, os.getpid()))
for _ in range(2):
    if not os.fork():
        {child}
        os._exit(0)
    os.wait()
"""


def forks(child: str, folder: Path, before: str = "") -> list[str]:
    """Return what two workers print, which are forked one after the other."""
    done = subprocess.run(
        [sys.executable, "-c", _FORK.format(child=child, before=before)],
        cwd=folder, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.long
def test_nothing_that_workers_need_starts_a_thread_before_they_are_forked(tmp_path: Path) -> None:
    code = "from trident.spark import worker_daemon; worker_daemon.import_what_workers_need()\n"
    code += "import os, sys; print('pyarrow.lib' in sys.modules, os.listdir('/proc/self/task') == [str(os.getpid())])"
    done = subprocess.run(
        ["/usr/bin/env", "OMP_NUM_THREADS=1", sys.executable, "-c", code],  # as Spark sets it
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == "True True\n"


@pytest.mark.long
def test_each_worker_draws_its_own_numbers(tmp_path: Path) -> None:
    first, second = forks("print(numpy.random.random(), flush=True)", tmp_path, "import numpy.random")
    assert first != second


def test_what_is_missing_is_left_to_the_task_that_needs_it(tmp_path: Path) -> None:
    said = forks("print('pyspark.worker' in sys.modules, flush=True)", tmp_path, "sys.modules['pyarrow'] = None")
    assert said == ["True", "True"]


def test_a_worker_that_was_sent_the_drivers_code_imports_that(tmp_path: Path) -> None:
    shipped = tmp_path / "trident-code-0123456789ab.zip"
    with zipfile.ZipFile(shipped, "w") as archive:
        archive.writestr("trident/__init__.py", "VERSION = 'that of the driver'")
    child = (
        f"sys.path.insert(1, {str(shipped)!r}); import trident; "
        "print(trident.VERSION, 'pyarrow.lib' in sys.modules, flush=True)"
    )
    assert forks(child, tmp_path) == ["that of the driver True"] * 2


def test_a_local_session_forks_its_workers_there(spark: SparkSession) -> None:
    assert spark.sparkContext.getConf().get("spark.python.daemon.module") == "trident.spark.worker_daemon"
    said = spark.sparkContext.parallelize([0], 1).map(lambda _: str(sys.modules["__main__"].__file__)).collect()
    assert said == [worker_daemon.__file__]
