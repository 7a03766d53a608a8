"""Requests are cut by count and bytes, and tried again with pauses; readers write nothing."""

from __future__ import annotations

import itertools
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.errors import StateLossDetected, UnsupportedOperation
from trident.storekit import Retries, by_count, by_size, refuse_read_only, warn_of_eviction, warn_once

LOGGER = logging.getLogger("storekit")


@given(st.lists(st.binary(max_size=9), max_size=40), st.integers(1, 10), st.integers(1, 30))
def test_chunks_are_whole_in_order_and_bounded(items: list[bytes], most: int, room: int) -> None:
    assert [item for chunk in by_count(items, most) for item in chunk] == items
    assert all(0 < len(chunk) <= most for chunk in by_count(items, most))
    chunks = list(by_size(items, map(len, items), most, room))
    assert [item for chunk in chunks for item in chunk] == items
    for chunk in chunks:
        assert 0 < len(chunk) <= most
        assert len(chunk) == 1 or sum(map(len, chunk)) <= room
    for one, following in itertools.pairwise(chunks):  # no chunk ends early
        assert len(one) == most or sum(map(len, one)) + len(following[0]) > room


class Flaky:
    """Fails so many times, then answers."""

    def __init__(self, failures: int) -> None:
        self.failures, self.calls = failures, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise OSError(f"failure {self.calls}")
        return "answer"


def test_a_call_is_tried_again_so_many_times() -> None:
    retries = Retries(2, 0.0, 0.0)
    assert retries.run(Flaky(2), OSError) == "answer"
    with pytest.raises(OSError, match="failure 3"):
        retries.run(Flaky(3), OSError)
    with pytest.raises(OSError, match="failure 1"):
        retries.run(Flaky(1), ValueError)


def test_somebody_else_may_decide_how_long_to_go_on() -> None:
    asked: list[tuple[str, int]] = []

    def goes_on(error: Exception, failures: int, waited_s: float) -> bool:
        asked.append((str(error), failures))
        assert (waited_s > 0) == (failures > 1)
        return failures < 3

    with pytest.raises(OSError, match="failure 3"):
        Retries(0, 0.0, 0.0).run(Flaky(9), OSError, goes_on)
    assert asked == [("failure 1", 1), ("failure 2", 2), ("failure 3", 3)]


def test_pauses_double_up_to_a_bound_with_jitter() -> None:
    retries = Retries(9, 0.1, 1.0)
    for failures, whole_s in ((1, 0.1), (2, 0.2), (4, 0.8), (5, 1.0), (10_000, 1.0)):
        assert {whole_s / 2 <= retries.pause_s(failures) <= whole_s for _ in range(50)} == {True}


def test_a_reader_writes_nothing() -> None:
    refuse_read_only(False, "write 2 keys", "state p")
    with pytest.raises(UnsupportedOperation, match="cannot write 2 keys: state p was opened to be read only"):
        refuse_read_only(True, "write 2 keys", "state p")


def test_a_risk_is_told_once_and_an_eviction_is_a_loss_unless_it_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        warn_once(LOGGER, "server a", "forgets")
    warn_once(LOGGER, "server b", "forgets")
    assert caplog.messages == ["server a: forgets", "server b: forgets"]
    with pytest.raises(StateLossDetected, match="3 keys were evicted"):
        warn_of_eviction(LOGGER, "state p", "3 keys were evicted", allowed=False)
    warn_of_eviction(LOGGER, "state p", "3 keys were evicted", allowed=True)
    assert "3 keys were evicted; a key that was evicted begins again" in caplog.messages[-1]
