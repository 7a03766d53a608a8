"""Which tests are long, and which are quick.

A test that works for seconds, needs luck, or shows again, with other values, what others show, is long. It has the mark `long`,
or `sample(n)`: then all of its cases but n have it. The n are chosen so that as many values of its parameters as possible occur
among them. `make full` runs the long tests too.

Quick are those that start neither a JVM nor a server, and are not slow. `make quick` runs them.

The marks `spark` and `server` follow from the fixtures of a test. A test that starts one in another way has the mark in
its source, and so has a slow one, which starts other processes, tries cases by the hundred, or works for a fifth of a second
or more. All others get the mark `quick`; one that starts a JVM or a server all the same, by itself or in a process that it
starts, fails. A file with such a mark for all of its tests is not imported by `make quick`.
"""

import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

_OTHERS = ("spark", "server", "slow", "long", "soak")
_ALL_OTHERS = re.compile(rf"^pytestmark = .*\bmark\.({'|'.join(_OTHERS)})\b", re.MULTILINE)
_NAME = "TRIDENT_QUICK_TEST"
_JAVA = """#!/bin/sh
echo "java $*" >>"${0%/*}/../started"
echo "a quick test must not start Java; mark it with spark" >&2
exit 1
"""


def mark_long(items: list[pytest.Item]) -> None:
    """Mark as long the cases of each test with `sample(n)` that are not among its n; what soaks is neither."""
    cases: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if isinstance(item, pytest.Function) and "sample" in marks and "soak" not in marks:
            if not hasattr(item, "callspec"):
                raise pytest.UsageError(f"{item.nodeid} is one case, of which there is no sample")
            cases[item.nodeid.partition("[")[0]].append(item)
    for same in cases.values():
        sample = same[0].get_closest_marker("sample")
        assert sample is not None
        first = chosen([_values(item) for item in same], *sample.args)
        for number, item in enumerate(same):
            if number not in first:
                item.add_marker("long")


def _values(item: pytest.Function) -> dict[str, int]:
    """Return which value each parameter has; where several are combined, cases share the objects, not pytest's numbers."""
    return {name: id(value) for name, value in item.callspec.params.items()}


def chosen(cases: list[dict[str, int]], n: int) -> set[int]:
    """Return the numbers of n cases, each of which adds as many values of parameters as it can."""
    seen: set[tuple[str, int]] = set()
    left = dict(enumerate(cases))
    while left and len(cases) - len(left) < n:
        best = max(left, key=lambda number: len(left[number].items() - seen))
        seen |= left.pop(best).items()
    return set(range(len(cases))) - set(left)


def mark_quick(items: list[pytest.Item]) -> None:
    """Mark tests by their fixtures; those without a mark that says otherwise are quick."""
    for item in items:
        used = getattr(item, "fixturenames", ())
        if "spark" in used:
            item.add_marker("spark")
        if any(name.endswith(("_server", "_cluster")) for name in used):
            item.add_marker("server")
        if _is_quick(item):
            item.add_marker("quick")


def has_none(path: Path) -> bool:
    """Whether all tests of a file have a mark that says that they are not quick, so that it need not be imported."""
    text = path.read_text(encoding="utf-8") if path.suffix == ".py" else ""
    return _ALL_OTHERS.search(text) is not None and "mark.quick" not in text


def _is_quick(item: pytest.Item) -> bool:
    return not any(item.get_closest_marker(name) for name in _OTHERS)


def refuse_in_quick_tests(server: str) -> None:
    """Fail the test that starts a server, if it is a quick one."""
    if _NAME in os.environ:
        pytest.fail(f"the quick test {os.environ[_NAME]} starts {server}; mark it with server")


class Watch:
    """Has quick tests fail that start a JVM or a server, in this process or in one that they start."""

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="trident-no-java-"))
        program = self._home / "bin" / "java"
        program.parent.mkdir()
        program.write_text(_JAVA, encoding="utf-8")
        program.chmod(0o755)
        self._started = self._home / "started"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._without_java(item.nodeid) if _is_quick(item) else nullcontext():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        yield
        if self._started.exists():
            started = self._started.read_text(encoding="utf-8").splitlines()
            self._started.unlink()
            pytest.fail(f"a quick test starts a JVM; mark it with spark: {started[0]}")

    def pytest_unconfigure(self) -> None:
        shutil.rmtree(self._home)

    @contextmanager
    def _without_java(self, test: str) -> Iterator[None]:
        path = f"{self._home / 'bin'}{os.pathsep}{os.environ['PATH']}"
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (("JAVA_HOME", str(self._home)), ("PATH", path), (_NAME, test)):
                patch.setenv(name, value)
            yield
