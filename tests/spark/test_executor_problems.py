"""What is said of an executor whose Python cannot run a task: the texts are those of PySpark 3.5 to 4.2."""

from __future__ import annotations

import pytest

from trident.spark.job_errors import cannot_import, executor_problem

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
