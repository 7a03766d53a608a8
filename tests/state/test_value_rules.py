"""The value rule over columns and the rule over one value: whatever is stored and whoever won, they answer the same."""

import operator
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.crashing_stores import DictMap
from trident.errors import CorruptValueError
from trident.operations import Max, Min, Sum
from trident.state import (
    EVERYTHING_WON,
    CombinerUpdates,
    CombinerValueUpdater,
    OpaqueMap,
    OpaqueValue,
    ReducerValueUpdater,
    Sentinel,
    Snapshot,
    TransactionalMap,
    TransactionalValue,
    Txid,
    Winners,
)
from trident.state.interfaces import FormerTypes
from trident.state.maps import migrate_values
from trident.state.number_columns import NumberForm
from trident.state.number_table import NumberTable
from trident.state.table import KeyColumns, OpaqueTable, Span, as_list
from trident.state.values import UNKNOWN_ATTEMPT, Combine, own, stand_before

TXIDS = st.integers(1, 9)
ATTEMPTS = st.integers(0, 4) | st.just(UNKNOWN_ATTEMPT)
INTS = st.integers(-9, 9)
FLOATS = st.sampled_from([0.0, -0.0, 1.5, -2.25, float("inf"), float("nan"), 1e308])
RANGES = st.dictionaries(TXIDS, ATTEMPTS, max_size=4).map(lambda ranges: tuple(sorted(ranges.items())))
WINNERS = st.builds(Winners, RANGES, st.integers(0, 4)) | st.just(EVERYTHING_WON)


def stored(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[list[OpaqueValue]]:
    value = st.none() | numbers
    return st.lists(st.builds(OpaqueValue, TXIDS, ATTEMPTS, value, value), min_size=1, max_size=12)


@given(st.lists(st.tuples(TXIDS, ATTEMPTS)), TXIDS, WINNERS)
def test_who_won_is_the_same_for_each_and_for_all(heads: list[tuple[int, int]], txid: int, winners: Winners) -> None:
    txids, attempts = np.array(heads, np.int64).reshape(-1, 2).T
    assert winners.won_each(txids, attempts).tolist() == [winners.won(*head) for head in heads]
    one_by_one = [OpaqueValue(*head, "prev", "curr").stands_before(txid, winners) for head in heads]
    assert stand_before(txids, attempts, txid, winners).tolist() == one_by_one


def struct_of(number: Any) -> Any:
    return None if number is None else {"n": number, "d": float(number), "none": None}


STRUCT = NumberForm(("bigint", "double", "bigint"), ("n", "d", "none"))
Rows = list[OpaqueValue | None]
KINDS = {
    "a list": (INTS | FLOATS | st.text(max_size=1), None),
    "whole numbers": (INTS, NumberForm.of("bigint")),
    "floats": (FLOATS, NumberForm.of("double")),
    "structs": (INTS.map(struct_of), STRUCT),
}
"""The values of each kind of column, and the form of an array; None: it is a list."""
both_kinds_of_each = pytest.mark.parametrize(("values", "form"), KINDS.values(), ids=KINDS)


def table_of(rows: Rows, form: NumberForm | None) -> OpaqueTable:
    """Return what is stored as lists, or as a store of arrays finds it, absent keys included."""
    if form is None:
        return OpaqueTable.of(rows)
    kept = NumberTable(1, form)
    there = {(at,): row for at, row in enumerate(rows) if row is not None}
    assert kept.put(list(there), list(there.values()))
    found = kept.find(KeyColumns([list(range(len(rows)))]))
    assert found is not None
    return found


def some_rows(data: st.DataObject, values: st.SearchStrategy[Any]) -> Rows:
    """Draw what is stored for a few keys, or for many; some were removed, some never written; one attempt may be the writer."""
    rows: Rows = list(data.draw(stored(values)))
    if data.draw(st.booleans()):
        rows = [row and row._replace(attempt=1) for row in rows]
    for at in data.draw(st.sets(st.integers(0, len(rows) - 1))):
        rows[at] = None
    return rows * data.draw(st.sampled_from([1, 1, 1, 200]))


@pytest.mark.slow
@both_kinds_of_each
@given(data=st.data())
def test_what_stood_before_is_the_same_for_each_and_for_all(values: Any, form: Any, data: st.DataObject) -> None:
    rows, txid, winners = some_rows(data, values), data.draw(TXIDS), data.draw(WINNERS)
    table = table_of(rows, form)
    before = [None if row is None else row.at(Snapshot(txid - 1, winners)) for row in rows]
    assert repr(table.values_before(txid, winners)) == repr(before)
    assert repr(as_list(table.currs)) == repr([None if row is None else row.curr for row in rows])
    later = [(at, row.txid) for at, row in enumerate(rows) if row is not None and row.txid > txid]
    assert table.first_after(txid) == (later[0] if later else None)
    assert repr(list(table)) == repr(rows)
    assert repr([table[at] for at in range(-1, min(len(rows), 20))]) == repr([rows[-1], *rows[:20]])
    places = list(range(0, len(rows), 3))
    assert repr(list(table.at(places))) == repr(rows[::3])
    assert repr(list(table[1:3])) == repr(rows[1:3])


class Marked(FormerTypes):
    """Says of each value which declaration wrote it."""

    fields = ()
    types = ((1, "first", None), (3, "second", None))

    def convert(self, values: list[Any], former: str, names: Any) -> list[Any]:
        return [None if value is None else (former, value) for value in values]

    def narrow(self, values: list[Any]) -> list[Any]:
        raise AssertionError

    def widen(self, values: Any, attempt: int) -> Any:
        raise AssertionError


def marked(value: OpaqueValue) -> OpaqueValue:
    """Migrate one value by the attempt that wrote it."""
    former = next((type_ for until, type_, _ in Marked.types if value.attempt < until), None)
    if former is None:
        return value
    return value._replace(prev=value.prev and (former, value.prev), curr=value.curr and (former, value.curr))


@given(stored(st.integers(1, 9)), TXIDS, WINNERS)
def test_what_former_declarations_wrote_stands_by_the_same_rule(
    values: list[OpaqueValue], txid: int, winners: Winners
) -> None:
    now = migrate_values(values, winners.with_types(Marked.types), Marked())
    assert list(now) == [marked(value) for value in values]
    before = [marked(value).at(Snapshot(txid - 1, winners)) for value in values]
    assert OpaqueTable.of(now).values_before(txid, winners) == before


TOGETHER: dict[str, Any] = {"sum": Sum().combine, "min": Min().combine, "max": Max().combine}


@pytest.mark.slow
@pytest.mark.parametrize("function", TOGETHER)
@pytest.mark.parametrize("kind", ["whole numbers", "floats"])
@given(data=st.data())
def test_what_is_written_is_the_same_for_each_and_for_all(function: Combine, kind: str, data: st.DataObject) -> None:
    numbers, form = KINDS[kind]
    rows = some_rows(data, numbers)
    partials = data.draw(st.lists(numbers, min_size=1, max_size=9))
    partials = (partials * len(rows))[: len(rows)]
    txid = Txid(data.draw(TXIDS), 7, data.draw(WINNERS))
    new = table_of(rows, form).combine_with(np.array(partials), function, txid)
    bases = [None if row is None else row.at(Snapshot(txid - 1, txid.winners)) for row in rows]
    updated = [
        part if base is None else TOGETHER[function](base, part) for base, part in zip(bases, partials, strict=True)
    ]
    expected = [OpaqueValue(int(txid), 7, base, value) for base, value in zip(bases, updated, strict=True)]
    assert new is not None
    assert repr(list(new)) == repr(expected)
    assert new.span == Span(7, int(txid), int(txid))
    assert pa.array(new.currs).equals(pa.array(updated)) or kind == "floats"  # where a NaN is not itself


def test_transactional_example_of_the_documentation() -> None:
    store = DictMap(
        {("man",): TransactionalValue(1, 3), ("dog",): TransactionalValue(3, 4), ("apple",): TransactionalValue(2, 10)}
    )
    state = TransactionalMap(store)
    state.begin_commit(3)
    counts = state.multi_update([("man",), ("dog",)], [CombinerValueUpdater(operator.add, n) for n in (2, 1)])
    state.commit(3)
    assert counts == [5, 4]
    wanted = {"man": TransactionalValue(3, 5), "dog": TransactionalValue(3, 4), "apple": TransactionalValue(2, 10)}
    assert store.entries == {(word,): value for word, value in wanted.items()}


@pytest.mark.parametrize(("txid", "value", "prev"), [(3, 6, 4), (2, 3, 1)])
def test_opaque_example_of_the_documentation(txid: int, value: int, prev: int) -> None:
    store = DictMap({("count",): OpaqueValue(2, 0, prev=1, curr=4)})
    state = OpaqueMap(store)
    state.begin_commit(txid)
    assert state.multi_update([("count",)], [CombinerValueUpdater(operator.add, 2)]) == [value]
    state.commit(txid)
    assert store.entries == {("count",): OpaqueValue(txid, 0, prev, value)}


@pytest.mark.parametrize(
    ("stored", "seen"),
    [
        (OpaqueValue(3, 7, "prev", "curr"), "curr"),
        (OpaqueValue(4, 7, "prev", "curr"), "curr"),  # the winner of batch 4
        (OpaqueValue(4, 6, "prev", "curr"), "prev"),  # a failed attempt of batch 4
        (OpaqueValue(5, 7, "prev", "curr"), "prev"),  # an earlier attempt of the next batch, or a retried task
        (OpaqueValue(5, 8, "prev", "curr"), "prev"),
    ],
)
def test_what_a_snapshot_of_batch_4_sees_and_batch_5_starts_from(stored: OpaqueValue, seen: str) -> None:
    assert stored.at(Snapshot(4, Winners(((1, 7),)))) == seen


def test_reducer_folds_the_tuples_over_the_stored_value_or_the_initial_one() -> None:
    updater = ReducerValueUpdater(lambda: 100, operator.sub, [1, 2])
    assert [updater.update(None), updater.update(10)] == [97, 7]


def test_winners_are_ranges() -> None:
    winners = Winners().with_winner(1, 5).with_winner(2, 5).with_winner(3, 6)
    assert winners.ranges == ((1, 5), (3, 6))
    assert [winners.winner(txid) for txid in range(5)] == [None, 5, 5, 6, 6]
    assert [winners.won(2, 5), winners.won(2, 6), winners.won(3, 5), winners.won(3, 6)] == [True, False, False, True]
    assert Winners.of([[1, 5], [3, 6]]) == winners


def test_adopted_batches_stand_whatever_wrote_them() -> None:
    winners = Winners(((5, 9),)).with_adopted(6)
    assert [winners.won(4, 1), winners.won(6, 2), winners.won(7, 2), winners.won(7, 9)] == [True, True, False, True]
    assert winners.with_adopted(3).adopted == 6
    assert Winners.of([[5, 9]], 6) == winners


def test_a_plain_number_is_a_commit_in_which_everything_before_won() -> None:
    commit = Txid.of(7)
    assert (commit, commit.attempt, commit.sentinel, commit.expected) == (7, 0, None, None)
    assert commit.winners is EVERYTHING_WON
    assert commit.winners.won(3, 99)
    assert Txid.of(commit) is commit


def test_a_txid_keeps_its_commit_when_pickled_and_when_seen_by_a_partition() -> None:
    expected = Sentinel("log", 6, 2)
    commit = Txid(7, 3, Winners(((1, 2),)), "log").for_partition(expected)
    copy = pickle.loads(pickle.dumps(commit))
    assert copy == 7
    for txid in (commit, copy):
        assert (txid.attempt, txid.winners, txid.incarnation, txid.expected) == (3, Winners(((1, 2),)), "log", expected)
        assert txid.sentinel == Sentinel("log", 7, 3)


def test_the_version_of_a_sentinel_rises_with_each_legal_move() -> None:
    moves = [Sentinel("log", 1, 5), Sentinel("log", 2, 5), Sentinel("log", 2, 6), Sentinel("log", 3, 9)]
    versions = [sentinel.version for sentinel in moves]
    assert versions == sorted(set(versions))
    assert str(moves[0]) == "batch 1 attempt 5 of incarnation log"


def test_updates_of_many_keys_are_what_each_updater_gives() -> None:
    stored, args = [None, 0, 5, None], [1, 2, 3, None]
    updates: CombinerUpdates[Any] = CombinerUpdates(lambda old, arg: old * 10 + arg, args)
    assert updates.update_all(stored) == [1, 2, 53, None] == [u.update(s) for u, s in zip(updates, stored, strict=True)]
    assert (len(updates), updates[1:3].update_all([1, 2])) == (4, [12, 23])
    with pytest.raises(ValueError, match="argument 2 is longer"):
        updates.update_all([1])


def test_a_value_that_cannot_be_copied_is_refused_and_a_view_is_bytes() -> None:
    assert own(memoryview(b"ab")[::-1]) == b"ba"
    with pytest.raises(CorruptValueError, match="copy a value of type list: .*of a memoryview give bytes"):
        own([memoryview(b"ab")])
