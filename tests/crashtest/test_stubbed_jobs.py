"""Whole tests of jobs whose PySpark is a stub: what is found wrong, what is not, what is refused."""

import itertools
import math
import os
import shutil
import sqlite3
import sys
import zipfile
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.crashtest.stub_spark import COMMAND, JOBS, crashed, write_job
from tests.harness.servers import Server
from trident.crashtest import Comparison, CrashReport, CrashTest, KillMoment, TimeLimits, TrialOutcome, table_named
from trident.crashtest.job_run import JobRun
from trident.errors import ConfigError, TridentError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def outcomes(report: CrashReport) -> dict[KillMoment, TrialOutcome]:
    return {trial.point.moment: trial.outcome for trial in report.trials}


@pytest.mark.long
def test_a_counter_is_wrong_where_spark_does_not_know_of_a_batch_that_is_written(tmp_path: Path) -> None:
    write_job(tmp_path, JOBS["counter"])
    before = sorted(tmp_path.rglob("*"))
    report = crashed(tmp_path)
    found = outcomes(report)
    wrong = {moment for moment, outcome in found.items() if outcome is TrialOutcome.wrong}
    # After a part of the time that it took it may have written, or not.
    assert wrong - {KillMoment.time} == {KillMoment.after, KillMoment.uncommitted, KillMoment.older}
    assert found[KillMoment.before] is found[KillMoment.committed] is found[KillMoment.line] is TrialOutcome.exact
    assert not report.is_exact
    assert sorted(tmp_path.rglob("*")) == before, "the folder is only read"
    (after,) = [trial for trial in report.trials if trial.point.moment is KillMoment.after]
    assert after.where == f"add() had returned, Spark had not written commits/{after.point.batch}"
    keys = [["cow", "moon", "the"], ["cow", "the"], ["moon", "the"], ["a", "cow"]][after.point.batch]
    assert [each.key for each in after.differences] == keys


@pytest.mark.long
def test_each_line_of_a_function_that_writes_in_halves_is_found_out(tmp_path: Path) -> None:
    write_job(tmp_path, JOBS["halves"])
    report = crashed(tmp_path, moments=[KillMoment.line], kills=5)
    wrong = [trial.where for trial in report.trials if trial.outcome is TrialOutcome.wrong]
    assert any("db.execute(ADD, (word,))" in where or "INSERT INTO done" in where for where in wrong)
    assert not any("if db.execute" in where or "return" in where for where in wrong)


EXACT = TrialOutcome.exact


@pytest.mark.parametrize(
    ("job", "wanted"),
    [
        pytest.param(
            "guarded", dict.fromkeys(set(KillMoment) - {KillMoment.time}, EXACT), marks=pytest.mark.long
        ),
        pytest.param("slow", {KillMoment.time: EXACT}, marks=pytest.mark.long),
        pytest.param("endless counter", {KillMoment.after: TrialOutcome.wrong}, marks=pytest.mark.long),
        ("endless guarded", {KillMoment.after: EXACT}),
        ("restarting", {KillMoment.after: EXACT, KillMoment.committed: EXACT}),
        ("strict", {KillMoment.after: EXACT, KillMoment.older: TrialOutcome.refused}),  # to go on would be wrong
    ],
)  # fmt: skip
def test_a_job_has_the_outcome_of_each_moment_and_one_query_if_it_ends_or_not(
    job: str, wanted: dict[KillMoment, TrialOutcome], tmp_path: Path
) -> None:
    write_job(tmp_path, JOBS[job])
    report = crashed(tmp_path, moments=[*wanted], kills=len(wanted), seed=2)
    assert outcomes(report) == wanted
    assert (report.is_exact, report.kills) == (TrialOutcome.wrong not in wanted.values(), len(wanted))
    assert {call.query for call in report.calls} == {0}
    said = {KillMoment.time: "within add(), after 0.", KillMoment.older: "Spark had written commits/"}
    assert all(trial.where.startswith(said.get(trial.point.moment, "")) for trial in report.trials)
    refused = [trial.problem for trial in report.trials if trial.outcome is TrialOutcome.refused]
    assert all("the checkpoint is an older copy" in problem for problem in refused)


def test_a_job_that_does_not_start_again_is_not_exact(tmp_path: Path) -> None:
    write_job(tmp_path, JOBS["locked"])
    report = crashed(tmp_path, "counted.json", "", moments=[KillMoment.line], kills=3)
    stopped = [trial for trial in report.trials if trial.outcome is TrialOutcome.stopped]
    assert stopped
    assert "FileExistsError" in stopped[0].problem
    assert not report.is_exact


def test_a_table_that_a_kill_has_left_unreadable_is_wrong(tmp_path: Path) -> None:
    write_job(tmp_path, JOBS["torn"])
    report = crashed(tmp_path, "out", "", moments=[KillMoment.line], kills=7)
    torn = [each.found for trial in report.trials for each in trial.differences if each.key == "the whole table"]
    assert torn
    assert all("table out cannot be read: JSONDecodeError" in found for found in torn)
    assert not report.is_exact


def test_no_later_batch_runs_before_a_kill_that_waits_for_a_commit(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    note = (
        f"os.write(os.open('{calls}', os.O_APPEND | os.O_CREAT | os.O_WRONLY), b'%d %d\\n' % (os.getpid(), batch_id))"
    )
    slow = "import sitecustomize\nsitecustomize._LOOK_S = 0.2  # as if the machine were slow\n"
    write_job(
        tmp_path / "job",
        f"{slow}def add(batch, batch_id):\n    db.execute(ADD, (str(batch_id),))\n    {note}\n\nrun(add)",
    )
    (trial,) = crashed(tmp_path / "job", moments=[KillMoment.committed], kills=1, seed=1).trials
    batches = itertools.groupby(calls.read_text(encoding="utf-8").splitlines(), key=lambda line: line.split()[0])
    undisturbed, killed, again = [[int(line.split()[1]) for line in lines] for _, lines in batches]
    last = trial.point.batch
    assert (undisturbed, killed, again) == ([0, 1, 2, 3], [*range(last + 1)], [*range(last + 1, 4)])


def test_a_call_that_runs_fewer_lines_than_before_is_killed_all_the_same(tmp_path: Path) -> None:
    write_job(tmp_path / "job", JOBS["shorter"].replace("OUTSIDE", str(tmp_path / "seen")))
    report = crashed(tmp_path / "job", moments=[KillMoment.line], kills=6)
    assert [trial.outcome for trial in report.trials] == [TrialOutcome.exact] * 6
    assert len(report.calls[0].lines) > len(report.calls[1].lines)


def test_later_runs_may_take_longer_where_the_undisturbed_one_did() -> None:
    limits, run = (
        TimeLimits(timeout_s=300, idle_s=30),
        Mock(spec=JobRun, ended=False, seconds=100.0, longest_wait_s=20.0),
    )
    assert limits.after(run) == TimeLimits(400, 80)
    run.ended, run.seconds = True, 5.0
    assert limits.after(run) == TimeLimits(300, math.inf)


def test_the_folder_of_all_checkpoints_may_be_a_setting_of_the_session(tmp_path: Path) -> None:
    setting = "conf = {'spark.sql.streaming.checkpointLocation': 'all'}"
    session = (
        f"import pyspark.sql\nclass Session:\n    {setting}\npyspark.sql.SparkSession.getActiveSession = Session\n"
    )
    write_job(tmp_path, f"{session}{ADD}DataStreamWriter(BATCHES).foreachBatch(add).start(queryName='words')")
    found = outcomes(crashed(tmp_path, moments=[KillMoment.after, KillMoment.uncommitted], kills=2))
    assert set(found.values()) == {TrialOutcome.wrong}


ADD = "def add(batch, batch_id):\n    db.executemany(ADD, [(word,) for word in words(batch)])\n\n"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (ADD + "run(add, '/tmp/elsewhere')", "the checkpoint '/tmp/elsewhere' is not in the copy"),
        (ADD + "run(add, '../elsewhere')", "the checkpoint '../elsewhere' is not in the copy"),
        (ADD + "run(add, 's3a://bucket/checkpoint')", "the checkpoint 's3a://bucket/checkpoint' is not in the copy"),
        (ADD + "DataStreamWriter(BATCHES).foreachBatch(add).start()", "the query has no checkpoint"),
        (
            ADD + "DataStreamWriter(BATCHES).option('checkpointLocation', 'c').start()",
            "'DataStreamWriter' object has no",
        ),
        ("", "no query with a function for foreachBatch"),
        (ADD + "BATCHES.clear()\nrun(add)", "function was never called"),
        (ADD + "run(add)\nsys.exit('out of luck')", "failed before any kill, with exit code 1: out of luck"),
        ("run(lambda batch, batch_id: None)", "wrote nothing into counts in counts.db"),
        (
            "run(lambda batch, batch_id: db.execute('INSERT INTO counts VALUES (?, ?)', (str(time.time_ns()), 1)))",
            "two undisturbed runs of the job wrote different tables",
        ),
    ],
)
def test_what_cannot_be_tested_is_an_error_that_says_why(text: str, part: str, tmp_path: Path) -> None:
    write_job(tmp_path, text)
    with pytest.raises(TridentError, match=part.replace("(", r"\(")):
        crashed(tmp_path, kills=1)


def with_checkpoint(folder: Path, name: str) -> None:
    (folder / name / "offsets").mkdir(parents=True)
    (folder / name / "metadata").write_text("{}", encoding="utf-8")


def test_a_checkpoint_of_an_earlier_run_is_named_with_the_line_to_type(tmp_path: Path) -> None:
    write_job(
        tmp_path, ADD + "run(add)\nsys.exit('Wrong basePath' if Path('my checkpoint').exists() else 'a table is left')"
    )
    with_checkpoint(tmp_path, "my checkpoint")
    with pytest.raises(TridentError, match=r"Wrong basePath\. The folder has .* --reset \"rm -rf 'my checkpoint' …"):
        crashed(tmp_path, kills=1)


def test_a_job_that_fails_without_a_checkpoint_too_gets_no_advice_on_it(tmp_path: Path) -> None:
    write_job(tmp_path, ADD + "run(add)\nsys.exit('out of luck')")
    with_checkpoint(tmp_path, "old")
    with pytest.raises(TridentError, match="with exit code 1: out of luck$"):
        crashed(tmp_path, kills=1)


def test_a_folder_where_the_job_has_run_is_tested_without_what_that_left(tmp_path: Path) -> None:
    write_job(tmp_path, JOBS["guarded"])
    with (tmp_path / "job.py").open("a", encoding="utf-8") as job:
        job.write("\nsys.exit('Wrong basePath' if Path('old').exists() else 0)\n")
    with_checkpoint(tmp_path, "old")
    (tmp_path / "2026-11-29.log").touch()  # of the job, and beside it
    with closing(sqlite3.connect(tmp_path / "counts.db")) as db:
        db.execute("CREATE TABLE counts (word, n)")
        db.execute("INSERT INTO counts VALUES ('the', 9)")
        db.commit()
    said: list[str] = []
    assert crashed(tmp_path, kills=1, on_progress=said.append).is_exact
    assert said[0] == "the folder has the checkpoint of an earlier run: each copy begins without it and counts.db"
    assert (tmp_path / "old").is_dir()


def test_spark_connect_is_refused_by_name(tmp_path: Path) -> None:
    connect = "from pyspark.sql.connect.streaming.readwriter import DataStreamWriter"
    write_job(tmp_path, f"{connect}\nDataStreamWriter(BATCHES).foreachBatch(print)")
    classic = (tmp_path / "pyspark/sql/streaming/readwriter.py").read_text(encoding="utf-8")
    for name in ("connect/__init__.py", "connect/streaming/__init__.py", "connect/streaming/readwriter.py"):
        path = tmp_path / "pyspark/sql" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(classic if path.name == "readwriter.py" else "", encoding="utf-8")
    with pytest.raises(TridentError, match="the job runs on Spark Connect, where the server calls its function"):
        crashed(tmp_path)


def test_a_program_without_pyspark_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("print('done')", encoding="utf-8")
    (tmp_path / "done.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(TridentError, match="the job has not imported PySpark where it can be seen"):
        crashed(tmp_path, "done.json", "")


def test_what_an_earlier_run_left_is_removed_by_the_reset(tmp_path: Path) -> None:
    write_job(tmp_path, JOBS["guarded"])
    (tmp_path / "checkpoint" / "commits").mkdir(parents=True)
    (tmp_path / "checkpoint" / "commits" / "3").touch()
    with pytest.raises(TridentError, match="its checkpoint in the folder is at the end of the input"):
        crashed(tmp_path, kills=1)
    assert crashed(tmp_path, reset="rm -r checkpoint", kills=1).is_exact
    with pytest.raises(TridentError, match="--reset failed with exit code 3: no luck"):
        crashed(tmp_path, reset="echo no luck; exit 3", kills=1)


def test_a_reset_that_does_not_bring_the_table_back_is_found(tmp_path: Path) -> None:
    folder, outside = tmp_path / "job", tmp_path / "outside.json"
    write_job(
        folder, f"run(lambda batch, batch_id: Path('{outside}').write_text(json.dumps(list(range(batch_id + 1)))))"
    )
    (folder / "seen.py").write_text(
        f"import json, pathlib\ndef rows():\n    path = pathlib.Path('{outside}')\n"
        "    return json.loads(path.read_text())\n",
        encoding="utf-8",
    )
    with pytest.raises(TridentError, match="seen:rows is not as it was before the first run"):
        crashed(folder, "seen:rows", "", kills=1, copy="seen:rows")
    assert crashed(folder, "seen:rows", "", kills=1, copy="seen:rows", reset=f"rm -f {outside}").is_exact


@pytest.mark.parametrize(
    ("table", "reset", "copy", "text"),
    [
        ("postgresql://db/shop?table=totals", "true", "", "'shop' again and again .*, confirm it with --copy shop,"),
        ("postgresql://db/shop?table=totals", "true", "shop_copy", "--copy shop_copy is another one. .*--copy shop,"),
        ("postgresql://db/shop?table=totals", "", "shop", "'shop' is not in the copy of the folder: give --reset"),
        ("shop:rows", "true", "", "'shop:rows' again and again .*, confirm it with --copy shop:rows,"),
    ],
)
def test_a_store_that_is_no_copy_or_not_reset_is_refused_by_name(
    table: str, reset: str, copy: str, text: str, tmp_path: Path
) -> None:
    write_job(tmp_path, "Path('/never').touch()")
    with pytest.raises(ConfigError, match=text):
        CrashTest(COMMAND, tmp_path, table_named(table), Comparison(), reset, copy).run()


@pytest.mark.long
def test_a_job_that_writes_to_a_copy_on_a_server(postgres_server: Server, tmp_path: Path) -> None:
    url = f"postgresql://trident@{postgres_server.address}/postgres"
    write_job(
        tmp_path,
        f"""
        import psycopg
        server = psycopg.connect("{url}", autocommit=True)

        def add(batch, batch_id):
            server.cursor().executemany("INSERT INTO crashtest_words VALUES (%s)", [(word,) for word in words(batch)])

        run(add)
        """,
    )
    table, create = f"{url}?table=crashtest_words", "CREATE TABLE IF NOT EXISTS crashtest_words (word text)"
    (tmp_path / "empty.py").write_text(
        f"import psycopg\nwith psycopg.connect('{url}', autocommit=True) as server:\n"
        f"    server.execute('{create}')\n    server.execute('TRUNCATE crashtest_words')\n",
        encoding="utf-8",
    )
    reset = f"{sys.executable} empty.py"
    report = crashed(
        tmp_path, table, reset=reset, copy="postgres", moments=[KillMoment.after, KillMoment.before], kills=2
    )
    assert outcomes(report) == {KillMoment.after: TrialOutcome.wrong, KillMoment.before: TrialOutcome.exact}


def test_the_environment_keeps_its_own_customisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os\nos.environ['CUSTOM'] = 'yes'\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{own}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    folder = tmp_path / "job"
    write_job(folder, f"assert os.environ['CUSTOM'] == 'yes'\n{ADD}run(add)")
    assert crashed(folder, moments=[KillMoment.before], kills=1).is_exact


def test_a_pyspark_in_a_zip_whose_modules_share_a_loader(tmp_path: Path) -> None:
    write_job(tmp_path, f"import pyspark.sql.streaming.later\n\n{ADD}run(add)")
    (tmp_path / "pyspark/sql/streaming/later.py").write_text("", encoding="utf-8")
    with zipfile.ZipFile(tmp_path / "spark.zip", "w") as packed:
        for path in sorted((tmp_path / "pyspark").rglob("*.py")):
            packed.write(path, path.relative_to(tmp_path))
    shutil.rmtree(tmp_path / "pyspark")
    job = (tmp_path / "job.py").read_text(encoding="utf-8")
    (tmp_path / "job.py").write_text(f"import sys\nsys.path.insert(0, 'spark.zip')\n{job}", encoding="utf-8")
    assert outcomes(crashed(tmp_path, moments=[KillMoment.after], kills=1)) == {KillMoment.after: TrialOutcome.wrong}


def test_what_the_job_starts_is_left_alone(tmp_path: Path) -> None:
    check = "import os, sys; sys.exit('TRIDENT_CRASHTEST' in os.environ)"
    write_job(
        tmp_path, f"import subprocess\nsubprocess.run([sys.executable, '-c', {check!r}], check=True)\n{ADD}run(add)"
    )
    assert crashed(tmp_path, moments=[KillMoment.before], kills=1).is_exact
