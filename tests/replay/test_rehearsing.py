"""`trident.rehearse_upgrade`: which totals new code would change, over what the stores have; nothing is written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trident
from spouts import FixedBatchSpout, TextFileSpout
from states.delta import DeltaState
from tests.harness.topology_runs import dict_state, keep, run_all
from trident import Stream, TridentTopology
from trident.errors import ReplayFailedError, TopologyError, UnsupportedOperation
from trident.operations import Count, Max, Sum
from trident.read.state_reader import StateReader

pytestmark = pytest.mark.slow

ROWS = [["oslo", 1], ["rome", 2], ["oslo", 3], ["rome", -4], ["oslo", 5]]  # two a batch


def declared(
    folder: Path,
    more: Callable[[Stream], Any] = lambda sales: None,
    change: str = "",
    name: str = "sales",
    state: str = "revenue",
) -> Any:
    topology = TridentTopology(name, rename={"revenue": state})
    sales = topology.new_stream("sales", FixedBatchSpout("shop: string, euros: bigint", 2, *ROWS))
    kept = sales.where(change) if change else sales
    table = DeltaState.opaque(str(folder / "table"))
    kept.group_by("shop").persistent_aggregate(table, "euros", Sum(), "revenue", state_name=state)
    sales.persistent_aggregate(DeltaState.opaque(str(folder / "total")), Count(), "total")
    more(sales)
    return topology


@pytest.fixture
def log_dir(tmp_path: Path) -> str:
    run_all(declared(tmp_path), "in_process", log_dir=str(tmp_path / "log"), history="7d")
    return str(tmp_path / "log")


def test_totals_that_new_code_would_change_are_told_with_both(tmp_path: Path, log_dir: str) -> None:
    former, new = declared(tmp_path), declared(tmp_path, change="euros > 0")
    revenue, total = trident.rehearse_upgrade(former, new, 2, log_dir=log_dir)
    assert (revenue.first, revenue.last, revenue.equal) == (2, 3, 1)
    assert list(revenue.changed) == [(("rome",), -2, -6, -2)]
    assert (total.equal, list(total.changed), total.refused) == (1, [], "")
    with trident.open_state(former, "revenue", log_dir=log_dir) as state:
        assert state.multi_get(["oslo", "rome"]) == [9, -2]  # nothing was written
    revenue, total = trident.rehearse_upgrade(former, new, 100, log_dir=log_dir)
    assert (revenue.first, list(revenue.changed)) == (1, [(("rome",), -2, -4, 0)])


def test_a_state_that_gets_another_name_is_told_by_that_of_the_log(tmp_path: Path, log_dir: str) -> None:
    new = declared(tmp_path, change="euros > 0", state="euros_of_shops")
    revenue, _ = trident.rehearse_upgrade(declared(tmp_path), new, 2, log_dir=log_dir)
    assert (revenue.state, list(revenue.changed)) == ("revenue", [(("rome",), -2, -6, -2)])


def test_the_same_code_changes_nothing(tmp_path: Path, log_dir: str) -> None:
    done = trident.rehearse_upgrade(declared(tmp_path), declared(tmp_path), log_dir=log_dir)
    assert [(each.equal, list(each.changed)) for each in done] == [(2, []), (1, [])]


def test_states_of_one_declaration_only_or_of_a_kind_of_its_own_are_named(tmp_path: Path, log_dir: str) -> None:
    def more(sales: Stream) -> None:
        sales.group_by("shop").persistent_aggregate(dict_state({}), "euros", Max(), "best", state_name="best")
        keep(sales, "rows")

    done = {
        each.state: each
        for each in trident.rehearse_upgrade(declared(tmp_path), declared(tmp_path, more), log_dir=log_dir)
    }
    assert done["best"].refused == done["rows"].refused == "the former code does not write it"
    done = {
        each.state: each
        for each in trident.rehearse_upgrade(declared(tmp_path, more), declared(tmp_path), log_dir=log_dir)
    }
    assert done["best"].refused == "the new code does not write it"


def test_new_code_that_fails_names_batch_and_step(tmp_path: Path, log_dir: str) -> None:
    def more(sales: Stream) -> None:
        sales.map(lambda row: 1 // (row["euros"] + 4), "x: bigint").persistent_aggregate(dict_state({}), Count(), "n")

    with pytest.raises(
        ReplayFailedError,
        match="batch 2 of topology 'sales' cannot be processed again by the new code, .*ZeroDivisionError",
    ):
        trident.rehearse_upgrade(declared(tmp_path), declared(tmp_path, more), log_dir=log_dir)


def test_what_cannot_be_rehearsed_is_refused(tmp_path: Path, log_dir: str) -> None:
    def windows(sales: Stream) -> None:
        sales.tumbling_window(2, dict_state({}), "shop", Count(), "n").persistent_aggregate(
            dict_state({}), Count(), "w"
        )

    with pytest.raises(TopologyError, match="the new declaration is of topology 'other'"):
        trident.rehearse_upgrade(declared(tmp_path), declared(tmp_path, name="other"), log_dir=log_dir)
    with pytest.raises(UnsupportedOperation, match="keeps tuples of earlier batches, which the history does not have"):
        trident.rehearse_upgrade(declared(tmp_path), declared(tmp_path, windows), log_dir=log_dir)
    with pytest.raises(ValueError, match="batches=0: give at least 1"):
        trident.rehearse_upgrade(declared(tmp_path), declared(tmp_path), batches=0, log_dir=log_dir)


@pytest.mark.parametrize("more", [{}, {"most": Max("n")}], ids=["same columns", "one more column"])
def test_both_codes_begin_with_the_same_although_batches_are_committed_meanwhile(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(**aggregates: Any) -> TridentTopology:
        topology = TridentTopology("words")
        lines = topology.new_stream("lines", TextFileSpout(tmp_path / "in")).each("line", len, "n: bigint")
        state = DeltaState.opaque(str(tmp_path / "table"))
        kept = {"lines": Count(), "letters": Sum("n"), **aggregates}
        lines.group_by("line").persistent_aggregate(state, kept, "kept", state_name="kept")
        return topology

    def write() -> None:
        number = len(list((tmp_path / "in").iterdir()))
        (tmp_path / f"in/{number}.txt").write_text("cow\nmoon\n")

    (tmp_path / "in").mkdir()
    write()
    settings: dict[str, Any] = {"log_dir": str(tmp_path / "log")}
    with counted().start(engine="in_process", history="7d", **settings) as running:
        running.process_all_available()
        commits, multi_get = iter(range(3)), StateReader.multi_get

        def busy(self: StateReader, keys: Any) -> list[Any]:
            if next(commits, None) is not None:
                write()
                running.process_all_available()
            return multi_get(self, keys)

        monkeypatch.setattr(StateReader, "multi_get", busy)
        (done,) = trident.rehearse_upgrade(counted(), counted(**more), 1, **settings)
    assert (done.equal, list(done.changed), running.txid) == (2, [], 4 if more else 2)
