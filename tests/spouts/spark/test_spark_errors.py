"""What is told of an error of Spark."""

from __future__ import annotations

import sys

import pytest

from spouts.spark.chunks import said_by_spark

pytestmark = pytest.mark.quick


def test_a_module_that_workers_lack_leads_to_their_python() -> None:
    raised = RuntimeError("task failed\nTraceback (most recent call last):\nModuleNotFoundError: No module named 'x'")
    assert said_by_spark(raised) == (
        f"ModuleNotFoundError: No module named 'x'. Is {sys.executable} the Python of Spark's workers? "
        "If not, set PYSPARK_PYTHON to it before Spark starts"
    )
