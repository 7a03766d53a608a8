"""Tables are compared as multisets of rows, or by key."""

from __future__ import annotations

from typing import Any

import pytest

from trident.crashtest import Comparison, RowDifference
from trident.errors import ConfigError


def counts(**words: Any) -> list[dict[str, Any]]:
    return [{"word": word, "n": n} for word, n in words.items()]


def test_the_order_of_rows_and_columns_is_no_difference() -> None:
    other = [{"n": 2, "word": "moon"}, {"n": 1, "word": "cow"}]
    assert Comparison().differences(counts(cow=1, moon=2), other) == []
    assert Comparison(["word"]).differences(counts(cow=1, moon=2), other) == []


def test_a_key_has_what_was_expected_and_found() -> None:
    found = Comparison(["word"]).differences(counts(cow=1, moon=2, the=3), counts(cow=2, moon=2, a=1))
    assert found == [
        RowDifference("a", "no row", "n=1"),
        RowDifference("cow", "n=1", "n=2"),
        RowDifference("the", "n=3", "no row"),
    ]


def test_rows_without_a_key_are_counted() -> None:
    found = Comparison().differences([{"id": 1}, {"id": 2}], [{"id": 1}, {"id": 1}])
    assert found == [RowDifference("id=1", "1 ×", "2 ×"), RowDifference("id=2", "1 ×", "no row")]


def test_a_key_that_is_the_whole_row_is_counted_too() -> None:
    assert Comparison(["id"]).differences([{"id": 1}], [{"id": 1}] * 3) == [RowDifference("1", "1 ×", "3 ×")]


def test_a_key_with_several_rows_shows_each() -> None:
    one, other = [{"k": 1, "v": "a"}], [{"k": 1, "v": "a"}, {"k": 1, "v": "a"}, {"k": 1, "v": "b"}]
    assert Comparison(["k"]).differences(one, other) == [RowDifference("1", "v=a", "2 × v=a; v=b")]


def test_a_key_of_two_columns_names_them() -> None:
    rows = [{"day": "mon", "shop": "oslo", "euros": 3}]
    assert Comparison(["shop", "day"]).differences(rows, []) == [
        RowDifference("day=mon, shop=oslo", "euros=3", "no row")
    ]


def test_columns_that_differ_from_run_to_run_are_ignored() -> None:
    one, other = [{"k": 1, "at": "10:00"}], [{"k": 1, "at": "11:00"}]
    assert Comparison(ignored=["at"]).differences(one, other) == []
    assert len(Comparison().differences(one, other)) == 2


@pytest.mark.parametrize(
    ("one", "other"), [(0.1 + 0.2, 0.3), (2, 2.0), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ([1], (1,))]
)
def test_equal_values_of_another_form_are_equal(one: Any, other: Any) -> None:
    assert Comparison().differences([{"v": one}], [{"v": other}]) == []


@pytest.mark.parametrize(("one", "other"), [(0.3, 0.3001), (None, 0), ([1], [2])])
def test_other_values_are_not(one: Any, other: Any) -> None:
    assert len(Comparison().differences([{"v": one}], [{"v": other}])) == 2


def test_a_key_that_is_no_column_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="--key wort is not a column of the table; it has word, n"):
        Comparison(["wort"]).differences(counts(cow=1), [])
