"""Two runs of one commit task with different rows, on real servers: the first one that begins writes, the other one nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.stores.catalog import Home
from tests.stores.conftest import cases
from trident.errors import BackendError, FencedError, SecondRunError
from trident.state import Sentinel, Snapshot, Txid, Winners
from trident.testing.backend.schedules import Add

A = 1 << 20
KEYS = [(name,) for name in ("both", "first", "second", "again")]
BASE = Winners(((1, A),))


def begin(state: Any, txid: Txid, **rows: int) -> None:
    state.begin_commit(txid)
    state.multi_update([(key,) for key in rows], [Add(number) for number in rows.values()])


def batch_2(attempt: int, run: str) -> Txid:
    return Txid(2, attempt, BASE, "log", Sentinel("log", 1, A), run=run)


@pytest.mark.sample(4)
@cases(lambda store: store.fences and store.name not in ("memory", "redis-volatile"))
def test_what_two_runs_of_a_task_write_counts_once(name: str, home_of: Callable[[str], Home]) -> None:
    home = home_of(name)
    state_name = home.fresh_name("runs")
    first, second, late, again, reader = (home.open(state_name)[0] for _ in range(5))
    one = Txid(1, A, Winners(), "log", run="0")
    begin(first, one, both=1)
    first.commit(one)
    late.begin_commit(batch_2(A, "late"))  # where the sentinel moves with the commit this is not refused yet
    if not home.store.limits.moves_at_commit:
        late.commit(batch_2(A, "late"))
        with pytest.raises(SecondRunError, match="another run of the same Spark task has begun batch 2 attempt"):
            second.begin_commit(batch_2(A, "second"))
    else:
        begin(first, batch_2(A, "first"), both=10, first=10)
        begin(second, batch_2(A, "second"), both=20, second=20)
        first.commit(batch_2(A, "first"))
        with pytest.raises((SecondRunError, BackendError)):
            second.commit(batch_2(A, "second"))
        with pytest.raises((SecondRunError, BackendError)):
            late.commit(batch_2(A, "late"))
    with pytest.raises(SecondRunError):  # also of a commit that is complete, which wrote what Spark then lost
        second.begin_commit(batch_2(A, "second"))
    retry = batch_2(A + 1, "again")
    begin(again, retry, both=30, again=30)
    again.commit(retry)
    found = reader.multi_get_at(KEYS, Snapshot(2, BASE.with_winner(2, A + 1)))
    assert found == [31, None, None, 30]
    for each in (first, second, late, again, reader):
        each.close()


@cases(lambda store: store.name in ("redis", "memcached", "cassandra"))
def test_a_run_that_is_met_between_two_puts_goes_on_until_the_next_attempt(
    name: str, home_of: Callable[[str], Home]
) -> None:
    home = home_of(name)
    state_name = home.fresh_name("runs")
    first, second, again = (home.open(state_name)[0] for _ in range(3))
    one = Txid(1, A, Winners(), "log", run="0")
    begin(first, one, both=1)
    first.commit(one)
    begin(first, batch_2(A, "first"), both=10)
    with pytest.raises(SecondRunError):
        second.begin_commit(batch_2(A, "second"))
    first.multi_update([("first",)], [Add(10)])
    retry = batch_2(A + 1, "again")
    begin(again, retry, both=30)
    with pytest.raises(FencedError):
        first.multi_update([("both",)], [Add(11)])
    again.commit(retry)
    assert again.multi_get_at(KEYS, Snapshot(2, BASE.with_winner(2, A + 1))) == [31, None, None, None]
    for each in (first, second, again):
        each.close()
