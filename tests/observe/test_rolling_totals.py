"""Windows give what a model gives that keeps everything that was ever added."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from trident.observe.time_series import ALL_TIME, BUCKETS, WINDOWS_S, Windows

BEGAN = 1_000


@dataclass
class Everything:
    """The model: a list of all that was added, and when."""

    added: list[tuple[int, str, int]] = field(default_factory=list)

    def over(self, window: int, now: int) -> tuple[float, dict[str, int]]:
        bucket = window // BUCKETS
        begins = max(BEGAN, BEGAN + ((now - BEGAN) // bucket - BUCKETS) * bucket) if window else BEGAN
        sums: dict[str, int] = {}
        for at, key, amount in self.added:
            sums[key] = sums.get(key, 0) + (amount if at >= begins else 0)
        return now - begins, sums


PAUSES = st.one_of(st.integers(0, 40), st.integers(0, 2_000), st.integers(0, 200_000))
STEPS = st.lists(st.tuples(PAUSES, st.sampled_from("ab"), st.integers(0, 9)), max_size=60)


@given(STEPS, PAUSES)
def test_every_window_is_what_was_added_since_its_beginning(steps: list[tuple[int, str, int]], last: int) -> None:
    windows: Windows[str] = Windows(BEGAN)
    model = Everything()
    now = BEGAN
    for pause, key, amount in steps:
        now += pause
        windows.add({key: amount}, now)
        model.added.append((now, key, amount))
        for window in (*WINDOWS_S, ALL_TIME):
            assert windows.over(window, now) == model.over(window, now)
    now += last
    for window in (*WINDOWS_S, ALL_TIME):
        assert windows.over(window, now) == model.over(window, now)


def test_a_window_reaches_back_by_its_length_and_at_most_one_bucket_more() -> None:
    windows: Windows[str] = Windows(0)
    for second in range(3_000):
        windows.add({"a": 1}, second)
        seconds, added = windows.over(600, second)
        assert added["a"] == seconds + 1
        assert seconds == second or 600 <= seconds < 630


def test_a_year_with_something_in_each_minute_takes_no_more_memory_than_a_day() -> None:
    windows: Windows[str] = Windows(0)
    for minute in range(2 * 24 * 60):
        windows.add({"a": 1}, 60 * minute)
    after_two_days = sum(map(len, windows._notes.values()))
    for day in range(3, 365):
        for second in range(0, 86_400, 3_600):
            windows.add({"a": 1}, 86_400 * day + second)
    assert sum(map(len, windows._notes.values())) <= after_two_days <= len(WINDOWS_S) * (BUCKETS + 1)
    assert windows.over(86_400, 86_400 * 365).added == {"a": 24}
