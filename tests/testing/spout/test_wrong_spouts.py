"""The suite finds every spout that is wrong in one thing, names the promise that it breaks, and passes the one that is not."""

from __future__ import annotations

import io
from typing import Any

import pytest

from tests.testing.spout.line_spout import LineSource
from tests.testing.spout.wrong_spouts import WRONG
from trident.spout import SpoutType
from trident.testing import SpoutPromise, SpoutReport, Status, Violation, spout_suite

pytestmark = pytest.mark.slow


def run(source: Any, **arguments: Any) -> SpoutReport:
    return spout_suite(source, **{"seconds": 0.0, "out": io.StringIO(), **arguments})


class OpaqueSource(LineSource):
    spout_type = SpoutType.OPAQUE


class LooseSource(LineSource):
    spout_type = SpoutType.NON_TRANSACTIONAL


class AtLeastOnce(LooseSource):
    at_least_once = True


class DurableSource(LineSource):
    durable = True


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("source", [LineSource, OpaqueSource])
def test_the_correct_spout_passes(source: type[LineSource], seed: int) -> None:
    report = run(source, seed=seed)
    report.raise_if_violated()
    assert report.schedules >= 6


@pytest.mark.long
def test_the_correct_spout_passes_in_another_process() -> None:
    report = run(DurableSource)
    report.raise_if_violated()
    unclaimed = [promise for promise in SpoutPromise if report.status(promise) is not Status.OK]
    assert unclaimed == [SpoutPromise.AT_LEAST_ONCE]


def test_a_non_transactional_spout_may_promise_that_no_row_is_lost() -> None:
    report = run(AtLeastOnce)
    report.raise_if_violated()
    assert report.status(SpoutPromise.AT_LEAST_ONCE) is Status.OK


def test_what_is_not_claimed_is_told() -> None:
    report = run(LooseSource)
    report.raise_if_violated()
    unclaimed = {promise for promise in SpoutPromise if report.status(promise) is Status.NOT_CLAIMED}
    assert unclaimed == {
        SpoutPromise.REPLAY, SpoutPromise.ELSEWHERE, SpoutPromise.RETRY, SpoutPromise.RESTART,
        SpoutPromise.LOST_PARTITIONS, SpoutPromise.CHANGES, SpoutPromise.AT_LEAST_ONCE, SpoutPromise.EXACTLY_ONCE,
    }  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_spout_is_found_under_the_promise_that_it_breaks(wrong: str) -> None:
    source, promise = WRONG[wrong]
    report = run(source, seed=2)
    assert report.violated == {promise}, str(report)
    with pytest.raises(Violation, match=promise.title):
        report.raise_if_violated()


def test_every_promise_is_broken_by_a_wrong_spout() -> None:
    assert {promise for _, promise in WRONG.values()} == set(SpoutPromise)
