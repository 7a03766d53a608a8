"""Starts benchmarks as drivers of their own, in this tree or in another one, and gives back what they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark

from tests.benchmarks._processes import Memory
from tests.harness.servers import start_redis

ROOT = Path(__file__).parents[2]
LOCAL_CLUSTER = "local-cluster[2,1,2048]"


class DriverFailed(Exception):
    """A driver ended with an error; the text is the last that it printed."""


class _Driver:
    """A process; a context manager that ends it."""

    def __init__(self, module: str, arguments: list[str], tree: Path = ROOT) -> None:
        # The folder of the tree comes first on the path of the driver and of its workers, before the installed one.
        paths = {
            "PYTHONPATH": str(tree),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by __exit__
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=tree, env={**os.environ, **paths}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip

    def __enter__(self) -> _Driver:
        return self

    def __exit__(self, *raised: object) -> None:
        with self.process:
            if self.process.poll() is None:
                self.process.terminate()
        self._errors.close()

    def says(self) -> str:
        """Return its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def answer(self, said: str = "") -> Any:
        """Say something, wait for the end, and return what it printed last."""
        out, _ = self.process.communicate(said)
        if self.process.returncode:
            self._errors.seek(0)
            lines = [line for line in self._errors.read().splitlines() if line and not line[0].isspace()]
            raise DriverFailed(f"exit code {self.process.returncode}: {' '.join(lines[-2:])[:800]}")
        return json.loads(out.strip().splitlines()[-1])


def wordcount(tree: Path = ROOT, **options: Any) -> dict[str, Any]:
    """Run `tests.benchmarks.wordcount` of a tree."""
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]
    with _Driver("tests.benchmarks.wordcount", arguments, tree) as driver:
        figures: dict[str, Any] = driver.answer()
    return figures


def flat_run(**options: Any) -> list[dict[str, float]]:
    """Run many small batches and return the samples."""
    with _Driver("tests.benchmarks._flat_run", [json.dumps(options)]) as driver:
        samples: list[dict[str, float]] = driver.answer()
    return samples


def scale_run(**task: Any) -> dict[str, Any]:
    """Run a topology of computed keys; its figures, with the MB that each kind of process used when idle and at most."""
    with tempfile.TemporaryDirectory(prefix="trident-scale-log-") as log:
        task["settings"] = {"log_dir": log, **task["settings"]}
        with _Driver("tests.benchmarks._scale_run", [json.dumps(task)]) as driver, Memory(driver.process.pid) as memory:
            if driver.says() != "idle":
                driver.answer()
            idle = memory.begin()
            figures = driver.answer("go\n")
    return {**figures, "idle_mb": _rounded(idle), "peak_mb": _rounded(memory.peaks)}


def _rounded(by_role: dict[str, float]) -> dict[str, int]:
    return {role: round(mb) for role, mb in sorted(by_role.items())}


@contextmanager
def on_redis() -> Iterator[str]:
    """Start a Redis and give its address; it is stopped afterwards."""
    with tempfile.TemporaryDirectory(prefix="trident-scale-") as folder:
        server = start_redis(Path(folder))
        try:
            yield f"redis://{server.address}/0"
        finally:
            server.stop()
