"""How much the spouts may read: the arithmetic against models of stores, and what becomes of it in a topology."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.runtime.loop.sources import BackPressure

TARGET_S = 10.0
Store = Callable[[float], float]
"""From the share of a batch to the seconds that it takes."""


def store(fixed_s: float, read_s: float, noise: float = 0.0, seed: int = 0) -> Store:
    draw = random.Random(seed)
    return lambda share: (fixed_s + read_s * share) * (1 + draw.uniform(-noise, noise))


def run(pressure: BackPressure, takes: Store, batches: int, in_flight: int = 1) -> list[float]:
    """Let batches run, several of them defined ahead; return the share after each."""
    shares, flying = [], deque([pressure.share] * (in_flight - 1))
    for _ in range(batches):
        flying.append(pressure.share)
        defined_with = flying.popleft()
        pressure.took(defined_with, takes(defined_with))
        shares.append(pressure.share)
    return shares


def test_fast_batches_change_nothing() -> None:
    assert set(run(BackPressure(TARGET_S), store(0.5, 9.4, noise=0.005), 50)) == {1.0}


@pytest.mark.parametrize("in_flight", [1, 3, 5])
@pytest.mark.parametrize("slow_s", [20.0, 60.0, 1_000.0])
def test_a_slow_store_shrinks_batches_within_few_to_what_it_can_take(slow_s: float, in_flight: int) -> None:
    shares = run(BackPressure(TARGET_S), store(0.0, slow_s), 40, in_flight)
    assert shares[0] == pytest.approx(
        max(TARGET_S / slow_s, 0.25)
    )  # a single batch never costs more than three quarters
    settled = 1 + 4 * in_flight
    assert all(share * slow_s == pytest.approx(TARGET_S, rel=0.15) for share in shares[settled:])


@pytest.mark.parametrize("in_flight", [1, 3, 5])
def test_a_store_that_is_fast_again_gets_whole_batches_again_step_by_step(in_flight: int) -> None:
    pressure = BackPressure(TARGET_S)
    run(pressure, store(0.0, 1_000.0), 40, in_flight)
    low = pressure.share
    shares = run(pressure, store(0.01, 1.0), 40 * in_flight, in_flight)
    assert shares[-1] == 1.0
    steps = [after / before for before, after in zip([low, *shares], shares, strict=False)]
    assert all(1.0 <= step <= 1.25**in_flight + 1e-9 for step in steps)


def test_one_stall_is_forgotten_after_some_batches() -> None:
    pressure = BackPressure(TARGET_S)
    shares = [*run(pressure, store(600.0, 0.0), 1), *run(pressure, store(0.1, 1.0), 8)]
    assert (shares[0], shares[-1]) == (0.25, 1.0)


@pytest.mark.parametrize("fixed_s", [5.0, 9.0, 30.0, 200.0])
def test_batches_are_not_cut_where_less_to_read_does_not_make_them_faster(fixed_s: float) -> None:
    """Else a store that takes a minute for any commit would get a thousandth of the rows per minute."""
    read_s = 20.0
    shares = run(BackPressure(TARGET_S), store(fixed_s, read_s), 60)[20:]
    rate = sum(shares) / sum(fixed_s + read_s * share for share in shares)
    assert rate >= 0.4 / (fixed_s + read_s)  # of what whole batches would give


@pytest.mark.parametrize("seed", range(20))
def test_noise_does_not_make_it_swing(seed: int) -> None:
    shares = run(BackPressure(TARGET_S), store(0.3, 40.0, noise=0.3, seed=seed), 200, in_flight=3)[30:]
    assert 0.1 < min(shares) <= max(shares) < 0.55  # a quarter would be right


def test_a_batch_in_flight_that_was_large_does_not_cut_the_small_ones_again() -> None:
    pressure = BackPressure(TARGET_S)
    for _ in range(5):
        pressure.took(1.0, 40.0)
        assert pressure.share == 0.25


def test_a_batch_that_is_not_done_in_time_is_too_large_whatever_the_target() -> None:
    pressure = BackPressure(TARGET_S)
    for _ in range(3):  # all that were in flight
        pressure.timed_out(1.0)
        assert pressure.share == 0.25
    pressure.timed_out(pressure.share)
    assert pressure.share == 0.0625
    assert run(pressure, store(0.01, 1.0), 40)[-1] == 1.0


seconds = st.floats(0, 1e6) | st.sampled_from([0.0, TARGET_S])


@given(st.lists(st.tuples(st.floats(0.001, 1), seconds)))
def test_the_share_is_never_zero_and_never_more_than_all(batches: list[tuple[float, float]]) -> None:
    pressure = BackPressure(TARGET_S)
    for share, took in batches:
        pressure.took(share, took)
        assert 0.001 <= pressure.share <= 1


@given(st.lists(seconds), st.integers(1, 5))
def test_whatever_happened_before_fast_batches_lead_back_to_all(before: list[float], in_flight: int) -> None:
    pressure = BackPressure(TARGET_S)
    for took in before:
        pressure.took(pressure.share, took)
    assert run(pressure, store(0.01, 1.0), 60 * in_flight, in_flight)[-1] == 1.0


def test_batches_that_spill_are_halved_and_grow_slowly_beyond_the_size_that_spilled() -> None:
    pressure, shares = BackPressure(TARGET_S), []
    for _ in range(200):
        share = pressure.share
        shares.append(share)
        pressure.took(share, 0.1)
        if share > 0.4:
            pressure.spilled(share)
    assert shares[:3] == [1.0, 0.5, 0.25]
    assert sum(share > 0.4 for share in shares[3:]) < 20
    assert min(shares) >= 0.1


def test_batches_that_no_longer_spill_become_whole_again() -> None:
    pressure = BackPressure(TARGET_S)
    pressure.spilled(1.0)
    assert run(pressure, store(0.0, 1.0), 60)[-1] == 1.0
