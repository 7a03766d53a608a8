"""Of the cases of a test, those that the default run takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.sampling import chosen

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.mark.sample(2)
@pytest.mark.parametrize("color", ["red", "blue"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_matrix(size, color):
    assert color != "blue"

@pytest.mark.long
def test_long():
    pass

def test_plain():
    pass
"""


def test_a_few_cases_have_as_many_values_as_they_can() -> None:
    cases = [{"color": color, "size": size} for color in range(2) for size in range(3)]
    assert [cases[number] for number in sorted(chosen(cases, 3))] == [
        {"color": 0, "size": 0},
        {"color": 0, "size": 2},
        {"color": 1, "size": 1},
    ]
    assert chosen(cases, 100) == set(range(6))


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize(("words", "run"), [([], 3), (["-m", "not soak"], 8)])
def test_the_default_run_takes_a_sample_and_names_failures_at_once(tmp_path: Path, words: list[str], run: int) -> None:
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "tests.conftest", tmp_path, *words]
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    progress = done.stdout.partition("= FAILURES =")[0]
    failed = sum("FAILED test_it.py::test_matrix[" in line for line in progress.splitlines())
    assert (
        "FAILED test_it.py::test_matrix[2-blue]" in progress
    )  # the second of a sample has other values than the first
    assert f"{failed} failed, {run - failed} passed" in done.stdout, done.stdout
    assert failed == (3 if words else 1)
