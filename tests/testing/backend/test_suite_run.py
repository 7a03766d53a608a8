"""A run of the suite keeps its time, says what it is doing, and takes away what it wrote; `python -m trident.testing`, too.

The suite finds every store that is wrong in one thing, under the right promise, and passes the store that is not.
"""

import io
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.harness.crashing_stores import DictMap
from tests.testing.backend.wrong_backends import LIMITS, WRONG, Entries, Factory, TakesAnOutageForAbsence, over
from trident.state import Key, StateType
from trident.testing import Limits, Promise, Report, Status, Violation, backend_suite
from trident.testing.__main__ import app
from trident.testing.backend.store_under_test import Store, SuiteRun
from trident.testing.suite import CheckProgress, OutOfTime

GOOD, BAD = Factory(), Factory(WRONG["TakesNoneForAbsent"][0])
HERE = "tests.testing.backend.test_suite_run"


class RemovableMap(DictMap):
    def multi_delete(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self.entries.pop(key, None)


class SlowMap(DictMap):
    """Takes a hundredth of a second for each request."""

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        time.sleep(0.01)  # what is tested is a store that takes its time
        return super().multi_get(keys)


def write(factory: Any, run: SuiteRun) -> None:
    store = Store(factory, run=run)
    for state in ("one", "two"):
        store.writer(state).commit([((f"key{number}",), number) for number in range(1500)], 1)
    store.close()


def test_a_run_ends_when_its_time_is_over_and_says_what_it_left_out() -> None:
    began = time.monotonic()
    report = backend_suite(over({}, SlowMap), limits=Limits(repartitions=True), at_most=0.3, out=io.StringIO())
    assert time.monotonic() - began < 30.0  # all of it would take much longer
    assert not report.ok
    assert not report.violations
    assert 0 < len(report.not_run) < len(report.findings)
    assert report.findings[-1].status is Status.NOT_RUN  # the schedules
    assert f"{len(report.not_run)} checks were not run for want of time" in str(report)
    assert "fencing         not run" in str(report)


def test_a_check_that_has_begun_ends_when_it_opens_the_next_map() -> None:
    store = Store(over({}), run=SuiteRun(until=time.monotonic() - 1))
    with pytest.raises(OutOfTime):
        store.map()


def test_what_was_written_is_deleted_by_the_map_or_by_a_function() -> None:
    entries: Entries = {}
    for factory, run in (
        (over(entries, RemovableMap), SuiteRun()),
        (over(entries), SuiteRun(clean=lambda conf: entries[conf.prefix].clear())),
        (lambda: over({}), SuiteRun()),  # a store that is thrown away
    ):
        write(factory, run)
        assert (any(entries.values()), run.left) == (False, {})
    assert len(entries) == 4


def test_what_a_map_of_two_methods_leaves_is_told() -> None:
    entries, run = Entries(), SuiteRun()
    write(over(entries), run)
    assert run.left == {prefix: len(keys) for prefix, keys in entries.items()}
    assert min(run.left.values()) >= 1500
    report = backend_suite(over({}), limits=Limits(repartitions=True), at_most=0.2, out=io.StringIO())
    assert f"{report.left} keys stay in the store" in str(report)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_tells_what_is_being_checked() -> None:
    out = Terminal()
    progress = CheckProgress(out, 80)
    for number in (1, 2):
        progress.say(number, "x" * 200)
    progress.end()
    lines = out.getvalue().split("\r")
    assert [line[:12] for line in lines[1:3]] == ["  0.0 s  1/8", "  0.0 s  2/8"]
    assert {len(line) for line in lines[1:4]} == {100}
    assert "\n" not in out.getvalue()


def test_elsewhere_lines_come_now_and_then() -> None:
    out = io.StringIO()
    progress = CheckProgress(out, 80)
    for number in range(1, 80):
        progress.say(number, "check")
    progress.end()
    assert out.getvalue() == "  0.0 s  1/80  check\n"
    CheckProgress(None, 3).say(1, "check")


def test_the_command_shows_progress_and_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    backend_suite(over({}), at_most=0.01)
    shown = capsys.readouterr()
    assert "BackingMapContract.test_" in shown.err
    assert "were not run for want of time" in shown.out


def run_command(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1"})
    return done.exit_code, done.output


@pytest.mark.slow
def test_a_good_store_ends_with_0() -> None:
    code, text = run_command(
        f"{HERE}:GOOD", "--seconds", "0", "--seed", "5", "--limits", f"{HERE}:LIMITS", "--kind", "opaque"
    )
    assert code == 0, text
    assert "everything that is claimed holds" in text
    assert "seed 5" in text


@pytest.mark.long
@pytest.mark.slow
def test_a_wrong_store_ends_with_1() -> None:
    code, text = run_command(f"{HERE}:BAD", "--seconds", "0")
    assert code == 1
    assert "absent          violated" in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["no_colon"], "expected MODULE:NAME"),
        (["no.such.module:x"], "No module named 'no'"),
        ([f"{HERE}:missing"], "has no attribute 'missing'"),
        ([f"{HERE}:GOOD", "--limits", f"{HERE}:GOOD"], "expected trident.testing.Limits"),
    ],
)
def test_what_cannot_be_found_is_an_error_of_usage(arguments: list[str], text: str) -> None:
    code, output = run_command(*arguments)
    assert code == 2
    assert text in output


@pytest.mark.long
@pytest.mark.slow
def test_a_module_of_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_store.py").write_text("from tests.testing.backend.test_suite_run import GOOD as open_map\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run_command("my_own_store:open_map", "--seconds", "0")[0] == 0


def run(factory: Any, **arguments: Any) -> Report:
    return backend_suite(factory, **{"seconds": 0.5, "out": io.StringIO(), **arguments})


_reports: dict[str, Report] = {}


def report_of(wrong: str) -> Report:
    if wrong not in _reports:
        _reports[wrong] = run(Factory(WRONG[wrong][0]), seconds=0, limits=LIMITS)
    return _reports[wrong]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("seed", "limits"), [(0, None), (1, None), (2, LIMITS), (3, LIMITS)])
def test_the_correct_store_passes(seed: int, limits: Limits | None) -> None:
    report = run(Factory(), seed=seed, limits=limits)
    report.raise_if_violated()
    assert report.ok
    assert report.schedules >= 6


@pytest.mark.slow
@pytest.mark.long
def test_the_correct_store_passes_as_each_kind() -> None:
    report = run({kind: Factory(kind=kind) for kind in StateType})
    report.raise_if_violated()
    assert {finding.kind for finding in report.findings} == {kind.value for kind in StateType}


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_store_is_found_under_the_promise_that_it_breaks(wrong: str) -> None:
    report, (_, promise) = report_of(wrong), WRONG[wrong]
    assert not report.ok
    assert promise in report.violated, str(report)
    with pytest.raises(Violation, match=promise.title):
        report.raise_if_violated()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("wrong", list(WRONG)[:10:2])
def test_the_verdict_does_not_depend_on_the_seed(wrong: str) -> None:
    store, promise = WRONG[wrong]
    assert promise in run(Factory(store), seconds=0, seed=1).violated


@pytest.mark.slow
@pytest.mark.long
def test_an_outage_that_looks_like_absence_is_found() -> None:
    factory = Factory(TakesAnOutageForAbsence)

    @contextmanager
    def outage() -> Iterator[None]:
        factory.server.is_down = True
        try:
            yield
        finally:
            factory.server.is_down = False

    assert run(factory, seconds=0).ok
    assert run(factory, seconds=0, outage=outage).violated == {Promise.ERRORS}


@pytest.mark.slow
@pytest.mark.long
def test_every_promise_is_broken_by_one_of_the_wrong_stores_at_least() -> None:
    found = set().union(*(report_of(wrong).violated for wrong in WRONG))
    unclaimed = {Promise.DURABLE, Promise.ATOMIC, Promise.CLAIMS}
    assert set(Promise) - found == unclaimed


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("claim", "promise"),
    [
        ({"durable": True}, Promise.DURABLE),
        ({"atomic_put": True, "max_key_bytes": 300}, Promise.ERRORS),
        ({"isolated": True}, Promise.ATOMIC),
        ({"atomic_commit": True}, Promise.ATOMIC),
        ({"fences": "no"}, Promise.CLAIMS),
        ({"lists": False}, Promise.LISTING),
        ({"max_value_bytes": 1000}, Promise.ERRORS),
        ({"max_key_bytes": 300}, Promise.ERRORS),
        ({"binary_keys": False}, Promise.BINARY_KEYS),
        ({"all_types": False}, Promise.VALUES),
    ],
    ids=str,
)
def test_a_claim_that_does_not_hold_is_found(claim: dict[str, Any], promise: Promise) -> None:
    claims = {**vars(LIMITS), **claim}
    assert promise in run(Factory(), seconds=0, limits=Limits(**claims)).violated
