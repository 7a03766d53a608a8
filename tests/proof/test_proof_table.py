"""A small part of each row runs here, and a broken rule makes each of them say so; `make proof` runs all of it."""

import csv
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis.stateful import RuleBasedStateMachine

from tests.harness.commands import until
from tests.log.log_homes import FileHome
from tests.proof import __main__ as command
from tests.proof import killed_processes, proof_machines, snapshot_reads
from tests.proof.append_histories import Txn, anomalies, edn, histories
from tests.proof.killed_processes import grown
from tests.proof.proof_machines import Ackers, Drivers, Maps, Partitions, Readers, run_machine
from tests.proof.proof_rows import ROWS
from tests.proof.proof_table import Record, Row, RowServers, Trial, picture, run_row, save, table
from tests.proof.random_bolts import Shape, check, in_process, on_spark
from tests.proof.snapshot_reads import reads
from tests.read.test_joint_reader import SHOPS
from tests.run.test_coordinator import Coordinating
from tests.spout.partition_source import Emitter
from tests.storm.spark.journaled import Journal
from tests.storm.test_tuple_trees import _ack_before_the_children, _emit_and_note_the_children
from trident.errors import TridentError
from trident.log.file_log import FileLog
from trident.log.log_interface import MemoryLog
from trident.read import state_reader
from trident.state import OpaqueValue
from trident.storm.execution.acker import Acker
from trident.storm.execution.collectors import BoltCollector

pytestmark = pytest.mark.slow

SEED = 5
Patch = Callable[[pytest.MonkeyPatch], None]


def three_fields(patch: pytest.MonkeyPatch) -> None:
    """Let every earlier write count as committed, as in Storm."""
    patch.setattr(OpaqueValue, "stands_before", lambda one, txid, winners: one.txid < txid)


def small(row: Row, folder: Path) -> Record:
    record = run_row(row, SEED, folder / row.name)
    assert record.is_complete
    return record


def a_part(name: str, trials: Callable[[Path, int], Iterator[Trial]]) -> Row:
    return Row(name, ROWS[name].what, {"cases": 1}, trials)


@pytest.mark.long
@pytest.mark.parametrize(("name", "size"), [("P1", 50), ("P2", 50)])
def test_simulated_rows_are_right_and_see_a_rule_that_is_switched_off(
    name: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = small(ROWS[name].of_size(size), tmp_path / "right")
    assert right.wrong == []
    assert right.counts["cases"] >= size
    three_fields(monkeypatch)
    wrong = small(ROWS[name].of_size(size), tmp_path / "wrong")
    assert wrong.wrong


@pytest.mark.long
def test_cells_of_every_pairing_are_drawn(tmp_path: Path) -> None:
    assert len({trial.group for trial in ROWS["P1"].trials(tmp_path, SEED)}) == 6 + 8


@pytest.fixture
def drivers(tmp_path: Path) -> type[Drivers]:
    numbers = iter(range(10_000))
    return type("DriversHere", (Drivers,), {"make_home": staticmethod(lambda: FileHome(tmp_path / str(next(numbers))))})


def begun_twice(patch: pytest.MonkeyPatch) -> None:
    begin = Acker._begin

    def twice(acker: Acker, begun: list[int], outcomes: Any) -> None:
        for tree in list(acker._young):
            acker._young[tree] &= (1 << 65) - 1  # forgets that it has begun
        begin(acker, begun, outcomes)

    patch.setattr(Acker, "_begin", twice)


def rows_once_more(patch: pytest.MonkeyPatch) -> None:
    """Let a source say that it has read less than it did."""
    emit = Emitter.emit_partition_batch_new

    def less(emitter: Emitter, *given: Any) -> Any:
        said = emit(emitter, *given)
        return {**said, "end": said["end"] - 1} if said and said["end"] - said["start"] > 1 else said

    patch.setattr(Emitter, "emit_partition_batch_new", less)


def no_owner(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FileLog, "check_owner", lambda log: None)


def no_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryLog, "check_owner", lambda log: None)
    three_fields(patch)


MACHINES: dict[str, tuple[type[RuleBasedStateMachine] | None, Patch | None, int]] = {
    "maps": (Maps, three_fields, 10),
    "coordinator": (Coordinating, None, 10),  # tests/run/test_coordinator.py breaks nothing: its model is a few lists
    "log": (None, no_owner, 8),
    "readers": (Readers, no_fence, 10),
    "spouts' metadata": (Partitions, rows_once_more, 3),
    "acker": (Ackers, begun_twice, 20),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_passes_and_sees_breaks(name: str, drivers: type[Drivers], monkeypatch: pytest.MonkeyPatch) -> None:
    machine, broken, examples = MACHINES[name]
    assert run_machine(machine or drivers, SEED, examples) == {"cases": examples}
    if broken is not None:
        broken(monkeypatch)
        with pytest.raises((AssertionError, ExceptionGroup, TridentError, pytest.fail.Exception)):
            run_machine(machine or drivers, SEED, 10 * examples, shrinks=False)


def test_a_batch_that_waits_for_a_partition_gets_it_back() -> None:
    machine = Partitions()
    machine.begin(transactional=True, limit=5, pending=1, arrow=False)
    machine.failures += ["committing"] * 500
    machine.grow("a", 3)
    until(lambda: machine.running.status["failures"] > 0, "a batch is defined, and fails")
    machine.come_or_go("a")
    machine.running.stop()
    machine.failures.clear()
    machine.running = machine.started()
    machine.run()
    assert machine.source.gone == set()
    machine.teardown()


def test_the_row_of_machines_has_all_six_and_the_log_in_four_homes(tmp_path: Path) -> None:
    with closing(proof_machines.machines(tmp_path, SEED)) as trials:  # type: ignore[type-var]
        groups = [trial.group for trial in islice(trials, 9)]
    assert sorted(groups[:5]) == sorted(set(MACHINES) - {"log"})
    assert groups[5:] == [f"log in {home}" for home in ("files", "PostgreSQL", "an object store", "ZooKeeper")]


@pytest.mark.long
def test_a_driver_that_is_stopped_and_replaced_counts_as_a_zombie(tmp_path: Path) -> None:
    def trials(work: Path, seed: int) -> Iterator[Trial]:
        with RowServers(work) as servers, closing(killed_processes._Drivers(work, servers, 0)) as drivers:
            yield from islice(drivers.zombies(), 1)

    record = small(a_part("P4", trials), tmp_path)
    assert (record.wrong, record.counts["zombies"]) == ([], 1)


@pytest.mark.server
def test_a_server_that_is_killed_is_exact_or_names_its_loss(tmp_path: Path) -> None:
    def trials(work: Path, seed: int) -> Iterator[Trial]:
        with RowServers(work) as servers:
            yield from islice(killed_processes._of_store("redis-volatile", work, servers, seed), 1)

    record = small(a_part("P5", trials), tmp_path)
    assert record.wrong == []
    assert record.counts["exact"] + record.counts["loss named"] == record.counts["kills"] == 5


@pytest.mark.long
def test_other_processes_read_beside_commits(tmp_path: Path) -> None:
    def trials(work: Path, seed: int) -> Iterator[Trial]:
        with closing(reads(work, 3, 100)) as all_of_them:  # type: ignore[type-var]
            yield from islice(all_of_them, 1)

    record = small(a_part("P6", trials), tmp_path)
    assert (record.wrong, record.counts["reads"], list(record.groups)) == ([], 40, ["Delta twice"])


def test_a_reader_of_two_batches_at_once_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = {"folder": str(tmp_path), "store": "Delta twice", "reads": 1}
    orders = snapshot_reads._orders(task)
    with orders.running() as running:
        for rows in (3, 1):
            orders.spout.feed([(shop, 1) for shop in SHOPS[:rows]])
            running.process_all_available()
    snapshot_reads._main(task)
    right = state_reader.snapshots_of
    monkeypatch.setattr(
        state_reader, "snapshots_of", lambda *given: {**right(*given), "sales": replace(right(*given)["sales"], txid=1)}
    )
    with pytest.raises(AssertionError, match="read 0 of batch 2"):
        snapshot_reads._main(task)


@pytest.mark.long
def test_a_history_of_appends_beside_killed_drivers_is_right_and_exported(tmp_path: Path) -> None:
    def trials(work: Path, seed: int) -> Iterator[Trial]:
        with closing(histories(work, seed, 60)) as all_of_them:  # type: ignore[type-var]
            yield from islice(all_of_them, 1)

    record = small(a_part("P10", trials), tmp_path)
    assert (record.wrong, record.counts["appends"]) == ([], 60)
    (exported,) = (tmp_path / "P10" / "histories").iterdir()
    lines = exported.read_text().splitlines()
    assert lines[0].startswith("{:index 0, :type :invoke, :process 0, :f :txn, :value [[:append ")
    assert len(lines) == 2 * (6 + record.counts["reads"])


def run_many(seeds: range) -> None:
    for seed in seeds:
        in_process(seed)


def test_random_bolts_are_right_and_an_early_ack_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    run_many(range(60))
    monkeypatch.setattr(BoltCollector, "ack", _ack_before_the_children)
    monkeypatch.setattr(BoltCollector, "emit", _emit_and_note_the_children)
    with pytest.raises(AssertionError, match="acknowledged"):
        run_many(range(0, 300, 3))


def test_the_oracle_of_trees_sees_what_is_early_and_what_is_lost(tmp_path: Path) -> None:
    shape, journal = Shape(0), Journal(tmp_path / "journal")
    words = shape.words()
    for word in random.Random(1).sample(words, len(words)):
        journal.write(f"L 0 {word}")
    journal.write("A 0")
    check(journal, shape, 1)
    with pytest.raises(AssertionError, match="lost"):
        check(journal, shape, 2)
    journal.write("A 1")
    with pytest.raises(AssertionError, match="message 1 was acknowledged before"):
        check(journal, shape, 2)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_random_bolts_on_spark_lose_nothing_though_workers_are_killed(tmp_path: Path) -> None:
    assert on_spark(tmp_path / "journal", SEED)["kills"] > 0


BATCHES = [Txn(0, [("a", 1), ("b", 2)]), Txn(0, [("a", 3), ("a", 4)]), Txn(0, [("b", 5)])]
LAST = Txn(1, reads={"a": [1, 3, 4], "b": [2, 5]})


def reading(**reads: list[int]) -> Txn:
    return Txn(2, reads=reads)


def test_a_right_history_has_no_anomaly() -> None:
    assert anomalies([*BATCHES, LAST, reading(a=[], b=[]), reading(a=[1], b=[2]), reading(a=[1, 3, 4], b=[2])]) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([reading(a=[1, 3, 4, 9])], "9 is read, and no committed transaction"),
        ([reading(a=[1, 1])], "a value twice"),
        ([reading(a=[3, 4])], "are no prefixes of one order"),
        ([reading(a=[1, 3])], "in the middle of a transaction"),
        ([reading(a=[1], b=[])], "is in a cycle"),
        ([reading(a=[], b=[2, 5])], "is in a cycle"),
        ([reading(a=[1], b=[2]), reading(a=[], b=[])], "is in a cycle"),
        ([Txn(0, [("b", 6)])], "('b', 6) is lost"),
        ([Txn(3, [("a", 1)])], "is appended twice"),
    ],
)
def test_each_anomaly_is_seen(more: list[Txn], said: str) -> None:
    found = anomalies([*BATCHES, LAST, *more])
    assert any(said in each for each in found), found


def test_a_history_is_written_as_elle_reads_it() -> None:
    assert edn([Txn(0, [("a", 1)]), Txn(1, reads={"a": [1], "b": []})]).splitlines() == [
        '{:index 0, :type :invoke, :process 0, :f :txn, :value [[:append "a" 1]]}',
        '{:index 1, :type :ok, :process 0, :f :txn, :value [[:append "a" 1]]}',
        '{:index 2, :type :invoke, :process 1, :f :txn, :value [[:r "a" nil] [:r "b" nil]]}',
        '{:index 3, :type :ok, :process 1, :f :txn, :value [[:r "a" [1]] [:r "b" []]]}',
    ]


def failing(work: Path, seed: int) -> Iterator[Trial]:
    def fail() -> Mapping[str, int]:
        raise AssertionError("one is lost")

    samples = [{"seconds": 1.0, "log, KB": 3.0}, {"seconds": 2.0, "log, KB": 4.0}]
    yield Trial("right", lambda: {"kills": 3}, samples)
    yield Trial("wrong", fail, samples)
    yield from (Trial("right", partial(dict, kills=at)) for at in range(10))
    raise OSError("the server does not end")


def test_what_is_wrong_is_counted_told_and_saved(tmp_path: Path) -> None:
    record = run_row(Row("P0", "an example", {"kills": 4}, failing), 7, tmp_path / "work")
    assert (record.counts["cases"], record.counts["kills"], len(record.wrong)) == (4, 4, 1)
    assert table([record]).splitlines()[2].startswith("| P0 | an example | 4 kills | 4 cases, 4 kills | 1 | ")
    for _ in range(2):
        save([record], tmp_path / "out", {"commit": "abc"})
    lines = list(csv.DictReader((tmp_path / "out" / "rows.csv").read_text().splitlines()))
    assert [line["command"] for line in lines] == ["python -m tests.proof --row P0 --seed 7"] * 2
    assert "wrong: AssertionError: one is lost" in (tmp_path / "out" / "wrong.txt").read_text()
    assert "log, KB: 4.0 (most 4.0)" in (tmp_path / "out" / "p0-samples.svg").read_text()


def test_a_row_that_cannot_end_or_is_cut_short_says_so(tmp_path: Path) -> None:
    record = run_row(Row("P0", "an example", {"kills": 400}, failing), 7, tmp_path / "work")
    assert record.wrong[-1].startswith("at the begin or the end: OSError")
    assert "(cut short)" in table([record])
    assert "3 kills (cut short)" in table([run_row(record.row, 7, tmp_path / "more", minutes=0.0)])
    assert "not here" in table([Record(ROWS["P7"], 0)])


def test_a_group_of_a_row_can_be_run_alone(tmp_path: Path) -> None:
    record = run_row(Row("P0", "an example", {"kills": 4}, failing), 7, tmp_path, group="right")
    assert (list(record.groups), record.wrong, record.counts["kills"]) == (["right"], [], 4)


def test_the_command_prints_the_table_and_fails_if_a_case_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROWS, "P2", Row("P2", "an example", {"kills": 3}, failing))
    asked = ["--row", "P2", "--out", str(tmp_path)]
    assert command.main(asked) == 0
    assert "| P2 | an example | 3 kills | 1 cases, 3 kills | 0 |" in capsys.readouterr().out
    assert command.main([*asked, "--seeds", "4"]) == 1
    assert "WRONG wrong: AssertionError: one is lost" in capsys.readouterr().out


def test_growth_is_that_of_the_last_third() -> None:
    samples = [{"seconds": float(at), "a, MB": 100.0 + at // 6, "b, MB": 5.0} for at in range(9)]
    assert grown(samples) == {"a, MB": 1.01, "b, MB": 1.0}
    assert picture(samples, "seconds").count("<polyline") == 2
    starts = [{"largest driver, MB": size} for size in (110.0, 104.0, 104.0, 104.0, 104.0, 104.0, 110.0, 110.0, 121.0)]
    assert grown(starts[:-1]) == {"largest driver, MB": 1.0}
    assert grown(starts) == {"largest driver, MB": 1.1}
