"""Seeds one bug after the other, and shows that a test catches each: `python -m tests.proof.mutants [--only NAME]`.

Prints a table; exit code 1 if a mutant survives. The tests must pass without any mutant, which is tried first.
"""

import argparse
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.proof.mutant import ROOT, Mutant
from tests.proof.mutants_of_logs import OF_LOGS
from tests.proof.mutants_of_runs import OF_RUNS
from tests.proof.mutants_of_sources import OF_SOURCES
from tests.proof.mutants_of_states import OF_STATES
from tests.proof.mutants_of_stores import OF_STORES

MUTANTS: tuple[Mutant, ...] = (*OF_STATES, *OF_STORES, *OF_LOGS, *OF_RUNS, *OF_SOURCES)

_COPIED = ("trident", "states", "spouts", "tests", "examples")
_LINKED = ("build", "docs")
_LIMIT_S, _TEST_LIMIT_S, _BASE_LIMIT_S = 240, 60, 1800
_CAUGHT, _PASSED = 1, 0  # exit codes of pytest
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - (.*))?$", re.MULTILINE)  # in pytest's summary
_STOP_S = 20.0  # for tests that are given up to stop their servers


class Verdict(NamedTuple):
    """What became of a mutant: the test that caught it, after how many seconds, and what that said; or none."""

    mutant: Mutant
    test: str | None
    seconds: float
    said: str = ""


class NoVerdictError(RuntimeError):
    """The tests say nothing about a mutant: they fail without one, or did not run."""


class Tree:
    """A copy of the project, in which mutants live one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in _COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        for name in _LINKED:
            if (ROOT / name).exists():
                (folder / name).symlink_to((ROOT / name).resolve())
        for path in (each for each in ROOT.iterdir() if each.is_file() and not each.name.startswith(".")):
            shutil.copy2(path, folder)

    def failed(self, tests: Iterable[str], seed: int, limit_s: float = _LIMIT_S) -> tuple[str, str] | None:
        """Run tests up to the first that fails; return that one and what it says; None: all pass.

        Raises
        ------
        NoVerdictError
            They did not run, or did not end in time.
        """
        command = [
            sys.executable, "-m", "pytest", *tests, "-x", "-q", "-p", "no:cacheprovider", f"--timeout={_TEST_LIMIT_S}",
            f"--hypothesis-seed={seed}", f"--basetemp={self.folder / 'tmp'}",
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "COLUMNS": "400"}
        with subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", start_new_session=True,
        ) as process:  # fmt: skip
            try:
                said, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=_STOP_S)
                raise NoVerdictError(f"no end within {limit_s:g} seconds: {' '.join(tests)}") from None
            finally:
                _end(process)
        if process.returncode == _PASSED:
            return None
        found = _FAILED.search(said)
        if process.returncode != _CAUGHT or found is None:
            raise NoVerdictError(f"pytest ended with {process.returncode}:\n{said[-3000:]}")
        return found[1], found[2] or ""

    def verdict(self, mutant: Mutant, seed: int) -> Verdict:
        """Let a mutant live, and run its tests; tests that say nothing have not caught it."""
        with mutant.living_in(self.folder):
            began = time.monotonic()
            try:
                test, said = self.failed(mutant.tests, seed) or (None, "")
            except NoVerdictError as error:  # the others are to be judged all the same
                test, said = None, str(error)
        return Verdict(mutant, test, time.monotonic() - began, said)


def _end(process: subprocess.Popen[str]) -> None:
    """End the tests, and what they have started in their own session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def trees(count: int) -> Iterator[queue.SimpleQueue[Tree]]:
    """Make copies of the project for a while."""
    free: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="trident-mutants-", ignore_cleanup_errors=True) as folder:
        for number in range(count):
            place = Path(folder, str(number))
            place.mkdir()
            free.put(Tree(place))
        yield free


def run(
    seed: int = 1, limit: int | None = None, only: Sequence[str] = ("",), jobs: int = 1, trusted: bool = False
) -> list[Verdict]:
    """Let mutants live, at most `limit` of those whose names have one of the texts `only`; return what became of each.

    `seed`: chooses the mutants, if not all are taken, and what random tests try.
    `jobs`: how many live at the same time, each in its own copy.
    `trusted`: take for granted that the tests pass without a mutant.
    """
    chosen = [each for each in MUTANTS if any(text in each.name for text in only)]
    if limit is not None and limit < len(chosen):
        kept = set(random.Random(seed).sample(range(len(chosen)), limit))
        chosen = [each for at, each in enumerate(chosen) if at in kept]
    with trees(jobs) as free, ThreadPoolExecutor(jobs) as pool:
        if not trusted:
            _check_tests(free, chosen, seed)

        def judged(mutant: Mutant) -> Verdict:
            tree = free.get()
            try:
                verdict = tree.verdict(mutant, seed)
            finally:
                free.put(tree)
            said = verdict.said[:80] if verdict.test else verdict.said
            sys.stderr.write(f"{mutant.name}: {verdict.test or 'NOT CAUGHT'} ({verdict.seconds:.1f} s) {said}\n")
            return verdict

        return list(pool.map(judged, chosen))


def _check_tests(free: queue.SimpleQueue[Tree], chosen: Sequence[Mutant], seed: int) -> None:
    tree = free.get()
    tests = list(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
    failed = tree.failed(tests, seed, _BASE_LIMIT_S) if tests else None
    free.put(tree)
    if failed is not None:
        raise NoVerdictError(f"{failed[0]} fails without any mutant: {failed[1]}")


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as Markdown."""
    caught = [each for each in verdicts if each.test is not None]
    slowest = max((each.seconds for each in caught), default=0.0)
    rows = [
        f"| {each.mutant.name} | `{each.mutant.file}` | {_cell(each.test)} | {each.seconds:.0f} |" for each in verdicts
    ]
    return "\n".join(
        [
            "# Mutants",
            "Each row is the product with one bug, seeded on purpose, and the first test that caught it, with the seconds that",
            "its tests took, their start and that of their servers included. `python -m tests.proof.mutants` makes this table.",
            "",
            f"{len(verdicts)} mutants, {len(caught)} caught, the slowest after {slowest:.0f} seconds.",
            "",
            "| the bug | where | caught by | s |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _cell(test: str | None) -> str:
    """Return the test's name without its place and its case."""
    if test is None:
        return "**not caught**"
    file, _, name = test.partition("::")
    return f"`{Path(file).name}`: `{name.rpartition('::')[2].partition('[')[0]}`"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Seed bugs, and show that the tests catch each of them.")
    parser.add_argument("--only", action="append", help="only mutants with this text in their name; may be repeated")
    parser.add_argument("--limit", type=int, help="at most so many, chosen by the seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--trusted", action="store_true", help="do not try first whether the tests pass without a mutant"
    )
    options = parser.parse_args(argv)
    verdicts = run(options.seed, options.limit, options.only or [""], options.jobs, options.trusted)
    sys.stdout.write(table(verdicts))
    return 0 if all(each.test for each in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
