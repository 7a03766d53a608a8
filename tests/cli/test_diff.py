"""`trident explain` and `trident diff`: what a topology says of itself, what new code changes; nothing is run or written."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.commands import COUNTS, trident, write_module
from trident.cli.submitting import _ask_stores
from trident.cluster.nimbus import NimbusDaemon
from trident.config import Config

pytestmark = pytest.mark.slow

JOB = """
    from spouts import FixedBatchSpout
    from states.delta import DeltaState
    from trident import TridentTopology
    from trident.operations import Collect, Count, Max, Sum

    topology = TridentTopology("revenue")
    orders = topology.new_stream("orders", FixedBatchSpout("shop: string, euros: bigint", 1, ["north", 7], ["south", 5]))
    orders.group_by("shop").persistent_aggregate(DeltaState("sales"), {aggregates}, "sales")
"""

OLD = '{"revenue": Sum("euros"), "orders": Count()}'


def declare(folder: Path, name: str, aggregates: str) -> str:
    write_module(folder, name, JOB.replace("{aggregates}", aggregates))
    return f"{name}.py:topology"


@pytest.fixture
def old(tmp_path: Path) -> str:
    return declare(tmp_path, "old", OLD)


def test_what_goes_on_is_named_and_is_no_failure(tmp_path: Path, old: str) -> None:
    new = declare(tmp_path, "new", '{"orders": Count(), "revenue": Sum("euros"), "largest": Max("euros")}')
    done = trident("diff", old, new, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (
        0,
        "goes on: state 'sales': 'largest' is new, Max: null for a key until it is next written; it counts from the next "
        "batch on\n",
    )
    assert trident("diff", old, old, cwd=tmp_path).stdout.startswith("the totals go on: ")
    assert not (tmp_path / "sales").exists()


def test_what_would_be_refused_is_named_with_what_to_do(tmp_path: Path, old: str) -> None:
    trident("run", old, "--once", "--conf", "engine=in_process", cwd=tmp_path)
    new = declare(tmp_path, "new", '{"revenue": Max("euros"), "orders": Count()}')
    for what in (old, "trident-log/revenue"):
        done = trident("diff", what, new, cwd=tmp_path)
        assert done.returncode == 4
        assert done.stdout == (
            "refused: state 'sales': 'revenue' Sum(euros: bigint) -> Max(euros: bigint)\n"
            "  To do: give what is new a name of its own, revenue_2: it counts from the next batch on, beside 'revenue', or in "
            "its place if 'revenue' is left out\n"
        )
    shown = json.loads(trident("diff", old, new, "--json", cwd=tmp_path).stdout)
    (text,) = (one["text"] for one in shown["refused"])
    assert text == "state 'sales': 'revenue' Sum(euros: bigint) -> Max(euros: bigint)"


def test_a_renamed_topology_does_not_go_on(tmp_path: Path, old: str) -> None:
    trident("run", old, "--once", "--conf", "engine=in_process", cwd=tmp_path)
    renamed, new = tmp_path / "new.py", "new.py:topology"
    renamed.write_text((tmp_path / "old.py").read_text().replace('Topology("revenue")', 'Topology("sales")'))
    for what in (old, "trident-log/revenue"):
        done = trident("diff", what, new, cwd=tmp_path)
        assert (done.returncode, "topology 'revenue': its name is 'sales' now" in done.stdout) == (4, True)
    assert trident("diff", "trident-log/revenue", new, "--name", "revenue", cwd=tmp_path).returncode == 0
    there = trident("run", new, "--once", "--log-dir", "trident-log/revenue", "--engine", "in_process", cwd=tmp_path)
    assert "if it was renamed, give it its former name" in there.stderr


def test_advice_in_json_names_the_topology(tmp_path: Path, old: str) -> None:
    new = tmp_path / "new.py"
    new.write_text((tmp_path / "old.py").read_text().replace('"shop")', '"shop", "euros")'))
    (refused,) = json.loads(trident("diff", old, "new.py:topology", "--json", cwd=tmp_path).stdout)["refused"]
    assert 'TridentTopology("revenue-2")' in refused["remedy"]


def test_a_transactional_state_with_another_value_is_refused_as_at_the_start(tmp_path: Path) -> None:
    job = JOB.replace("DeltaState(", "DeltaState.transactional(")
    for name, aggregates in (("old", OLD), ("new", '{"orders": Count()}')):
        write_module(tmp_path, name, job.replace("{aggregates}", aggregates))
    trident("run", "old.py:topology", "--once", "--conf", "engine=in_process", cwd=tmp_path)
    done = trident("diff", "trident-log/revenue", "new.py:topology", cwd=tmp_path)
    assert done.returncode == 4
    assert "a transactional state does not say which declaration wrote a value. Declare it as it was" in done.stdout
    started = trident("run", "new.py:topology", "--once", "--conf", "engine=in_process", cwd=tmp_path)
    assert done.stdout.splitlines()[0].removeprefix("refused: ") in started.stderr
    assert "goes on" not in done.stdout


def test_what_a_store_cannot_hold_is_refused_as_at_the_start(tmp_path: Path, old: str) -> None:
    for name, aggregates, rows in (("old", OLD, ""), ("without", '{"orders": Count()}', ', ["south", 6]')):
        declare(tmp_path, name, aggregates)
        job = tmp_path / f"{name}.py"
        job.write_text(job.read_text().replace('["south", 5]', f'["south", 5]{rows}'))
        trident("run", f"{name}.py:topology", "--once", "--conf", "engine=in_process", cwd=tmp_path)
    new = declare(tmp_path, "new", '{"orders": Count(), "revenue": Collect("euros")}')
    done = trident("diff", "trident-log/revenue", new, cwd=tmp_path)
    assert done.returncode == 4, done.stdout
    why = "'revenue' of state 'sales' is of type array<bigint>, and what had this name before is of type bigint"
    assert why in done.stdout
    assert why in trident("run", new, "--once", "--conf", "engine=in_process", cwd=tmp_path).stderr
    log = ("--conf", f"log_dir={tmp_path}/trident-log/revenue")
    with NimbusDaemon(str(tmp_path / "trident-cluster"), "token", tmp_path / "code") as nimbus:
        nimbus.wait_until_known()
        trident("submit", "without.py:topology", *log, cwd=tmp_path, TRIDENT_TOKEN="token")
        upgraded = trident("upgrade", "revenue", new, cwd=tmp_path, TRIDENT_TOKEN="token")
        shown = json.loads(trident("show", "revenue", "--json", cwd=tmp_path).stdout)
    assert (upgraded.returncode, why in upgraded.stderr, shown["generation"]) == (1, True, 1), upgraded.stderr
    assert "does not fit its stores:\n  state 'sales', where it is declared now\n    To do: " in upgraded.stderr


def test_an_upgrade_needs_no_package_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    unused: Any = SimpleNamespace(storm_name="revenue")
    _ask_stores(unused, unused, Config(log_dir="zookeeper://127.0.0.1:1/revenue"))


def test_a_state_in_another_place_is_refused_as_at_the_start(tmp_path: Path, old: str) -> None:
    trident("run", old, "--once", "--conf", "engine=in_process", cwd=tmp_path)
    assert trident("diff", "trident-log/revenue", old, cwd=tmp_path).returncode == 0
    new, job = tmp_path / "new.py", (tmp_path / "old.py").read_text()
    new.write_text(job.replace('DeltaState("sales")', 'DeltaState("elsewhere")'))
    done = trident("diff", "trident-log/revenue", "new.py:topology", cwd=tmp_path)
    move = "it to this one: trident state move OLD.py:topology sales --to NEW.py:topology. Else partition 0 of state"
    for said in ("it was emptied or moved away", move):
        assert (done.returncode, said in done.stdout) == (4, True), done.stdout
    assert not (tmp_path / "elsewhere").exists()
    assert trident("run", "new.py:topology", "--once", "--conf", "engine=in_process", cwd=tmp_path).returncode == 1


def test_what_is_no_log_and_no_declaration_is_a_wrong_use(tmp_path: Path, old: str) -> None:
    (tmp_path / "empty").mkdir()
    for what, text in (
        ("empty", "no transaction log in empty: it has no segment"),
        ("nothing", "expected MODULE:TOPOLOGY"),
    ):
        done = trident("diff", what, old, cwd=tmp_path)
        assert (done.returncode, text in done.stderr) == (2, True), done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_module(tmp_path, "counts", COUNTS)
    return tmp_path


@pytest.mark.sample(1)
@pytest.mark.parametrize(("option", "begin"), [([], "topology counts\n"), (["--mermaid"], "flowchart LR\n")])
def test_a_topology_is_shown(option: list[str], begin: str, folder: Path) -> None:
    done = trident("explain", "counts:topology", *option, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(begin)
    assert "Split" in done.stdout
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["counts.py"]


def test_the_states_are_given_as_json(folder: Path) -> None:
    states = json.loads(trident("explain", "counts:topology", "--json", cwd=folder).stdout)
    assert [(state["state"], state["streams"]["lines"]["guarantee"]) for state in states] == [
        ("count", "exact"),
        ("total", "exact"),
    ]


def test_one_form_at_a_time(folder: Path) -> None:
    done = trident("explain", "counts:topology", "--json", "--mermaid", cwd=folder)
    assert done.returncode == 2
    assert "exclude each other" in done.stderr
