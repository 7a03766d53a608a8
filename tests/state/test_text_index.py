"""The index of texts in arrays finds what the dict beside it has, whatever was added and removed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trident.state.number_table import TextIndex


@pytest.fixture(autouse=True, scope="module")
def for_few_texts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("trident.state.number_table._FEW_TEXTS", 0)
        patched.setattr("trident.state.number_table._SPACE", 4)
        yield


class Keys:
    """A dict of rows and its index, both told of each change."""

    def __init__(self) -> None:
        self.rows: dict[Any, int] = {}
        self.free: list[int] = []
        self.index = TextIndex(self.rows)

    def add(self, names: list[Any]) -> None:
        new = [name for name in dict.fromkeys(names) if name not in self.rows]
        for name in new:
            self.rows[name] = self.free.pop() if self.free else len(self.rows)
        self.index.add(new, np.array([self.rows[name] for name in new], np.int64))

    def remove(self, names: list[Any]) -> None:
        for name in names:
            row = self.rows.pop(name, None)
            if row is not None:
                self.free.append(row)
                self.index.remove(row)

    def check(self, texts: list[str]) -> None:
        found = self.index.rows_of(pa.array(texts, pa.string()))
        if texts and len(texts) * 64 >= len(self.rows):
            assert found is not None
            assert found.tolist() == [self.rows.get(text, -1) for text in texts]


SHORT = st.text("ab\0", max_size=10)
LONG = st.builds(lambda text, times: text * times, st.text("aü\0", min_size=1, max_size=3), st.integers(3, 30))
TEXTS = st.lists(SHORT | LONG | st.text(st.characters(codec="utf-8"), max_size=4), max_size=40)
OTHERS = st.lists(st.none() | st.binary(max_size=2) | st.integers(0, 3) | st.just("\udcff") | SHORT, max_size=4)
STEPS = st.lists(st.tuples(st.sampled_from(["add", "remove", "check"]), TEXTS, OTHERS), max_size=12)


@pytest.mark.slow
@given(STEPS)
@example([("add", ["x" * 41, "x" * 40], []), ("check", ["x" * 40, "x" * 41, "x" * 42], [])])
@example(
    [("check", ["a"], []), ("add", ["a", "b"], []), ("remove", ["a"], []), ("add", ["c"], []), ("check", ["a"], [])]
)
def test_the_index_finds_what_the_dict_has(steps: list[tuple[str, list[str], list[Any]]]) -> None:
    keys = Keys()
    for what, texts, others in steps:
        if what == "add":
            keys.add([*texts, *others])
        elif what == "remove":
            keys.remove([*texts, *others])
        else:
            keys.check(texts)
    keys.check([name for name in keys.rows if isinstance(name, str) and name != "\udcff"])


def test_texts_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trident.state.number_table._ODD", np.uint64(0))
    keys = Keys()
    texts = [f"{number}" for number in range(50)] + ["a text of more than one block", "another one"]
    keys.check(texts[:1])
    keys.add(texts[:40])
    keys.remove(texts[5:10])
    keys.check(texts)


def test_a_dict_is_faster_for_few_of_many_keys_and_must_do_for_nulls() -> None:
    keys = Keys()
    keys.add([str(number) for number in range(129)])
    assert keys.index.rows_of(pa.array(["1", "2"])) is None
    assert keys.index.rows_of(pa.array(["1", None, "2"])) is None
    assert keys.index.rows_of(["1", "2", "3"]) is None
    keys.check(["1", "2", "nothing"])
