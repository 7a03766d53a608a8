"""The suite finds every store that is wrong in one thing, under the right promise, and passes the store that is not."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.testing.backend.wrong_backends import LIMITS, WRONG, Factory, TakesAnOutageForAbsence
from trident.state import StateType
from trident.testing import Limits, Promise, Report, Violation, backend_suite

pytestmark = pytest.mark.slow


def run(factory: Any, **arguments: Any) -> Report:
    return backend_suite(factory, **{"seconds": 0.5, "out": io.StringIO(), **arguments})


_reports: dict[str, Report] = {}


def report_of(wrong: str) -> Report:
    if wrong not in _reports:
        _reports[wrong] = run(Factory(WRONG[wrong][0]), seconds=0, limits=LIMITS)
    return _reports[wrong]


@pytest.mark.long
@pytest.mark.parametrize(("seed", "limits"), [(0, None), (1, None), (2, LIMITS), (3, LIMITS)])
def test_the_correct_store_passes(seed: int, limits: Limits | None) -> None:
    report = run(Factory(), seed=seed, limits=limits)
    report.raise_if_violated()
    assert report.ok
    assert report.schedules >= 6


@pytest.mark.long
def test_the_correct_store_passes_as_each_kind() -> None:
    report = run({kind: Factory(kind=kind) for kind in StateType})
    report.raise_if_violated()
    assert {finding.kind for finding in report.findings} == {kind.value for kind in StateType}


@pytest.mark.sample(1)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_store_is_found_under_the_promise_that_it_breaks(wrong: str) -> None:
    report, (_, promise) = report_of(wrong), WRONG[wrong]
    assert not report.ok
    assert promise in report.violated, str(report)
    with pytest.raises(Violation, match=promise.title):
        report.raise_if_violated()


@pytest.mark.long
@pytest.mark.parametrize("wrong", list(WRONG)[:10:2])
def test_the_verdict_does_not_depend_on_the_seed(wrong: str) -> None:
    store, promise = WRONG[wrong]
    assert promise in run(Factory(store), seconds=0, seed=1).violated


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


@pytest.mark.long
def test_every_promise_is_broken_by_one_of_the_wrong_stores_at_least() -> None:
    found = set().union(*(report_of(wrong).violated for wrong in WRONG))
    unclaimed = {Promise.DURABLE, Promise.ATOMIC, Promise.CLAIMS}
    assert set(Promise) - found == unclaimed


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
