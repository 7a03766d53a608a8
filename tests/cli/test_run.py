"""`trident run`: what it runs, how it ends, and what it says when it cannot."""

import io
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.harness.commands import COUNTS, complaints, environment, last_txid, started, trident, until, write_module
from trident.cli.console import LineDisplay
from trident.cli.run import _of_left_out
from trident.config import Config
from trident.log.lock import held_by, list_log

pytestmark = pytest.mark.slow

IN_PROCESS = ("--engine", "in_process")
ON_SPARK = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_module(tmp_path, "counts", COUNTS)
    return tmp_path


def test_once_commits_all_there_is_and_the_next_run_goes_on_from_there(folder: Path) -> None:
    first = trident("run", "counts:topology", "--once", *IN_PROCESS, cwd=folder)
    assert (first.returncode, complaints(first.stderr)) == (0, [])
    assert "complete: 3 batches with 6 tuples" in first.stdout
    assert last_txid(folder / "trident-log" / "counts") == 3

    second = trident("run", "counts:topology", "--once", *IN_PROCESS, cwd=folder)
    assert (second.returncode, second.stdout) == (0, "complete: nothing new after batch 3\n")


@pytest.mark.parametrize("engine", ["spark", "auto"])
def test_once_with_nothing_new_starts_no_spark_and_still_checks_the_states(folder: Path, engine: str) -> None:
    trident("run", "counts:topology", "--once", *IN_PROCESS, cwd=folder)
    words = ("run", "counts:topology", "--once", "--engine", engine)
    idle = trident(*words, cwd=folder, JAVA_HOME="nowhere")
    assert (idle.returncode, idle.stdout, idle.stderr) == (0, "complete: nothing new after batch 3\n", "")
    (folder / "table").rename(folder / "elsewhere")
    gone = trident(*words, cwd=folder, JAVA_HOME="nowhere")
    assert gone.returncode == 1
    assert "state 'count'" in gone.stderr
    assert "Java" not in gone.stderr


SLOW_JAVA = """#!/bin/sh
case "$*" in
    *-version*) echo 'openjdk version "17.0.1"' >&2 ;;
    *) touch "$STARTED"; exec sleep 60 ;;
esac
"""


@pytest.mark.parametrize(
    ("words", "out"),
    [
        ((), "stopped before it had started; nothing was changed\n"),
        (("--once",), "stopped after batch 0; the next run continues from there\n"),
    ],
)
def test_sigterm_while_spark_starts_is_a_stop(folder: Path, words: tuple[str, ...], out: str) -> None:
    java, begun = folder / "jdk" / "bin" / "java", folder / "begun"
    java.parent.mkdir(parents=True)
    java.write_text(SLOW_JAVA)
    java.chmod(0o755)
    variables = environment(JAVA_HOME=str(folder / "jdk"), STARTED=str(begun))
    with started("run", "counts:topology", *words, cwd=folder, variables=variables) as running:
        until(begun.exists, "Spark's JVM is started")
        running.signal(signal.SIGTERM)
        code, said, problems = running.end()
    assert (code, said) == (143, out)
    assert "did not start" not in problems
    assert "Traceback" not in problems


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nowhere:topology"], 2, "there is no module 'nowhere'"),
        (["counts:topology", "--conf", "engin=spark"], 2, "unknown setting 'engin'; did you mean 'engine'?"),
        (["counts:topology", "--state-recovery", "guess"], 2, "'keep_totals'"),
        (["counts:topology", "--metrics-host", "::1"], 2, "--metrics-host says nothing without --metrics-port"),
        (["counts:ROWS"], 1, "error: counts:ROWS is a list; expected a TridentTopology"),
    ],
)
def test_what_cannot_be_run_is_explained(folder: Path, words: list[str], code: int, said: str) -> None:
    done = trident("run", *words, "--once", cwd=folder)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


FAILING = """
    from spouts import FixedBatchSpout
    from states.memory import MemoryMapState
    from trident import TridentTopology
    from trident.operations import Count

    def fail(line: str) -> str:
        raise ValueError("no good: " + line)

    topology = TridentTopology("failing")
    (
        topology.new_stream("lines", FixedBatchSpout("line: string", 1, ["a"]))
        .each("line", fail, "word: string")
        .group_by("word")
        .persistent_aggregate(MemoryMapState(), Count(), "count")
    )
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("debug", [False, True])
def test_a_batch_that_fails_for_good_is_one_message_and_a_trace_only_on_demand(tmp_path: Path, debug: bool) -> None:
    write_module(tmp_path, "failing", FAILING)
    options = (*IN_PROCESS, "--conf", "max_batch_attempts=1", *(["--debug"] if debug else []))
    done = trident("run", "failing:topology", "--once", *options, cwd=tmp_path)
    assert done.returncode == 1
    assert ("Traceback" in done.stderr) == debug
    if debug:
        assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]+ +trident\.", done.stderr, re.MULTILINE)
    else:
        assert done.stderr.startswith("error: batch 1 failed once in step 'lines/")
        assert done.stderr.count("no good: a") == 1


def _clean_end(folder: Path, options: tuple[str, ...], signum: signal.Signals) -> None:
    log_dir = folder / "trident-log" / "counts"
    with started("run", "counts:endless", *options, cwd=folder) as running:
        until(lambda: last_txid(log_dir) >= 3, "three batches are committed")
        running.signal(signum)
        code, out, problems = running.end()
        until(lambda: not running.session(), "every process of the run has ended")
    txid = last_txid(log_dir)
    assert code == 128 + signum
    assert out == f"stopped after batch {txid}; the next run continues from there\n"
    assert "stopping after the commit under way" in problems
    assert "Traceback" not in problems, problems
    assert held_by(log_dir, list_log(log_dir).claims[-1]) is None
    # Nothing beyond the last record is in the store: each batch holds "the" twice.
    read = trident("get", "counts:endless", "count", "the", "--json", cwd=folder)
    assert f'"txid": {txid}, "values": [{{"key": ["the"], "value": {2 * txid}}}]' in read.stdout


@pytest.mark.sample(1)
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_after_the_commit_under_way(folder: Path, signum: signal.Signals) -> None:
    _clean_end(folder, IN_PROCESS, signum)


@pytest.mark.long
@pytest.mark.spark
def test_ctrl_c_ends_a_run_on_spark_with_all_of_its_processes(folder: Path) -> None:
    _clean_end(folder, ON_SPARK, signal.SIGINT)


def test_what_tests_start_heeds_ctrl_c_also_in_a_suite_that_ignores_it(tmp_path: Path) -> None:
    write_module(tmp_path, "asks", "import os, signal; os._exit(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what it runs in the background
    try:
        with started("explain", "asks:topology", cwd=tmp_path) as explain:
            assert explain.end()[0] == 0
    finally:
        signal.signal(signal.SIGINT, before)


STUCK = """
    import pathlib, time
    from spouts import FixedBatchSpout
    from tests.harness.topology_runs import Keep, RowsState
    from trident import TridentTopology

    class Stuck(RowsState):
        def commit(self, txid):
            pathlib.Path("stuck").touch()
            while True:
                time.sleep(0.05)

    topology = TridentTopology("stuck")
    lines = topology.new_stream("lines", FixedBatchSpout("line: string", 1, ["a"]))
    lines.partition_persist(Stuck(), Keep(), lines.fields, state_name="kept")
"""


@pytest.mark.long
def test_a_second_signal_ends_a_run_that_is_stuck(tmp_path: Path) -> None:
    write_module(tmp_path, "stuck", STUCK)
    with started("run", "stuck:topology", *IN_PROCESS, cwd=tmp_path) as running:
        until((tmp_path / "stuck").exists, "a commit is stuck")
        running.signal(signal.SIGINT)
        assert running.process.stderr is not None
        assert any("stopping after the commit under way" in line for line in running.process.stderr)
        running.signal(signal.SIGINT)
        code, _, problems = running.end()
    assert code == 130
    assert "ended at once" in problems


@pytest.mark.long
def test_a_log_that_is_held_is_refused_and_a_takeover_ends_its_holder(folder: Path) -> None:
    log_dir = folder / "trident-log" / "counts"
    with started("run", "counts:endless", *IN_PROCESS, cwd=folder) as first:
        until(lambda: last_txid(log_dir) >= 1, "the first driver commits")
        refused = trident("run", "counts:endless", *IN_PROCESS, cwd=folder)
        assert refused.returncode == 1
        assert f"is held by process {first.process.pid}" in refused.stderr
        assert "--takeover" in refused.stderr

        with started("run", "counts:endless", "--takeover", *IN_PROCESS, cwd=folder) as second:
            code, _, problems = first.end()
            assert code == 3
            assert "has taken over" in problems
            before = last_txid(log_dir)
            until(lambda: last_txid(log_dir) > before, "the second driver goes on")
            second.signal(signal.SIGINT)
            assert second.end()[0] == 130


@pytest.mark.spark
def test_a_topology_of_a_users_module_runs_on_spark(folder: Path) -> None:
    done = trident("run", "counts:topology", "--once", *ON_SPARK, cwd=folder)
    assert (done.returncode, complaints(done.stderr)) == (0, ["starting Spark, which may take up to a minute"])
    assert "complete: 3 batches with 6 tuples" in done.stdout
    assert '"value": 6' in trident("get", "counts:topology", "count", "the", "--json", cwd=folder).stdout


class Watched:
    """What a display asks of a running topology."""

    last_progress = None

    def __init__(self, *sources: str) -> None:
        self.seconds = 0.0
        self._lags: dict[str, Any] = dict.fromkeys(sources)
        self.status: dict[str, Any] = {"txid": 0, "failures": 0, "deadLetters": 0, "share": 1.0, "waiting": None}
        self.read(0, dict.fromkeys(sources, 0))

    def read(self, txid: int, rows: dict[str, int], **lags: tuple[int, str]) -> None:
        self._lags |= {name: {"amount": amount, "unit": unit} for name, (amount, unit) in lags.items()}
        told = [{"description": one, "numInputRows": rows[one], "lag": lag} for one, lag in self._lags.items()]
        self.status |= {"txid": txid, "tuples": sum(rows.values()), "sources": told}


def plain_lines(running: Watched) -> list[str]:
    out = io.StringIO()
    with LineDisplay(Console(file=out), "words", every_s=0) as display:
        display.update(Watched(*(each["description"] for each in running.status["sources"])))  # type: ignore[arg-type]
        display.update(running)  # type: ignore[arg-type]
    return out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("rows", "seconds", "lag", "said"),
    [
        (19_000, 2.0, {}, "19,000 tuples, 9,500 tuples/s"),
        (0, 0.0, {"lines": (12_300_000, "bytes")}, "0 tuples, waiting for tuples, 11.7 MiB behind"),
        (0, 0.0, {"lines": (4_500, "records")}, "0 tuples, waiting for tuples, 4,500 records behind"),
        (0, 0.0, {"lines": (0, "files")}, "0 tuples, waiting for tuples, up to date"),
    ],
)
def test_one_source_says_all_in_one_line(rows: int, seconds: float, lag: dict[str, tuple[int, str]], said: str) -> None:
    running = Watched("lines")
    running.seconds = seconds
    running.read(3, {"lines": rows}, **lag)
    assert plain_lines(running) == [f"words: batch 3, {said}"]


def five_sources() -> Watched:
    running = Watched("orders", "users", "clicks", "refunds", "x")
    running.seconds = 2.0
    rows = {"orders": 200_000, "users": 20, "clicks": 4_000, "refunds": 0, "x": 6}
    running.read(7, rows, orders=(12_345, "records"), users=(0, "records"), clicks=(2_000_000, "bytes"))
    return running


def test_several_sources_have_a_line_each_that_can_be_searched_for() -> None:
    assert plain_lines(five_sources()) == [
        "words: batch 7, 204,026 tuples, 102,013 tuples/s",
        "words/orders: 100,000 tuples/s, 12,345 records behind",
        "words/users: 10 tuples/s, up to date",
        "words/clicks: 2,000 tuples/s, 1.9 MiB behind",
        "words/refunds: 0 tuples/s",
        "words/x: 3 tuples/s",
    ]


def test_on_a_terminal_the_figures_of_several_sources_stand_under_each_other() -> None:
    out = io.StringIO()
    with LineDisplay(Console(file=out, force_terminal=True, width=100), "words") as display:
        display.update(five_sources())  # type: ignore[arg-type]
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue()).replace("\r", "\n")
    assert [line.rstrip() for line in shown.splitlines() if "tuples/s" in line][-6:] == [
        "⠋ words: batch 7, 204,026 tuples, 102,013 tuples/s",
        "  orders   100,000 tuples/s  12,345 records behind",
        "  users         10 tuples/s  up to date",
        "  clicks     2,000 tuples/s  1.9 MiB behind",
        "  refunds        0 tuples/s",
        "  x              3 tuples/s",
    ]


def test_batches_that_were_cut_are_told_of() -> None:
    running = Watched("lines")
    running.read(2, {"lines": 0})
    running.status |= {"share": 0.0625, "failures": 1, "lastFailure": "away", "deadLetters": 1}
    cut = "batches cut to 6 % because they take long"
    assert plain_lines(running)[0].endswith(f"waiting for tuples, {cut}, 1 failure (the last: away), 1 dead letter")


LEAVING_OUT = """
    from spouts import FixedBatchSpout
    from states.delta import DeltaState
    from trident import TridentTopology
    from trident.operations import Count

    topology = TridentTopology("careful")
    (
        topology.new_stream("lines", FixedBatchSpout("n: bigint", 3, (1,), (0,), (2,)))
        .each("n", lambda n: 2 // n, "m: bigint")
        .group_by("m")
        .persistent_aggregate(DeltaState.opaque("counts"), Count(), "count")
    )
"""


def test_a_command_to_type_survives_a_shell(tmp_path: Path) -> None:
    log, folder = "postgresql://me@db/shop?topology=careful&port=1", f"{tmp_path}/my letters"
    said = _of_left_out("careful", Config.of(log_dir=log, dead_letter_dir=folder), 2)
    words = shlex.split(said.partition("`")[2].partition("`")[0])
    assert words == ["trident", "dead-letters", "list", log, "--dead-letter-dir", folder]


@pytest.mark.long
@pytest.mark.parametrize(("flag", "code"), [((), 0), (("--fail-on-dead-letters",), 4)])
def test_a_run_that_left_tuples_out_says_what_shows_them(tmp_path: Path, flag: tuple[str, ...], code: int) -> None:
    write_module(tmp_path, "careful", LEAVING_OUT)
    letters = ("--conf", "on_poison=dead_letter")
    done = trident("run", "careful:topology", "--once", *IN_PROCESS, *letters, *flag, cwd=tmp_path)
    assert done.returncode == code
    last = done.stdout.splitlines()[-1]
    assert last == ("1 tuple was left out as a dead letter; `trident dead-letters list trident-log/careful` shows it")
    shown = trident(*last.split("`")[1].split()[1:], cwd=tmp_path)
    assert "ZeroDivisionError" in shown.stdout
    again = trident("run", "careful:topology", "--once", *IN_PROCESS, *letters, *flag, cwd=tmp_path)
    assert (again.returncode, "left out" in again.stdout) == (0, False)  # it has left out nothing
