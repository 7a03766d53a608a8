"""`trident log`: what it says of a log, and of what is none."""

import json
import os
import re
import shutil
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness.commands import trident
from trident.cli.cluster_commands import print_logs
from trident.cli.log import _no_log, print_history, report, short
from trident.cli.log import log as print_log
from trident.errors import LogError
from trident.log import log_state
from trident.log.file_log import FileLog
from trident.log.records import CommitRecord, DefineRecord, LayoutRecord, StartRecord, TopologyRecord
from trident.retention import Retention
from trident.spout.interfaces import TransactionAttempt

ATTEMPT = 1 << 20
FIRST, SECOND = (TransactionAttempt(0, each).in_words for each in (ATTEMPT, ATTEMPT + 1))


def commit(txid: int, attempt: int = ATTEMPT) -> CommitRecord:
    lines = {"start": txid, "at": [b"\xff\xfe", 1]}
    return CommitRecord(txid, attempt, {"lines": lines}, {"count": (0,)}, {"tuples": 10}, 1_700_000_000_000 + txid)


@pytest.fixture
def log(tmp_path: Path) -> FileLog:
    """A log with two commits, the second of another attempt, and one batch that is only defined."""
    log = FileLog.open(tmp_path / "log", "words")
    log.append(LayoutRecord("count", 2, "opaque"))
    log.append(commit(1))
    log.append(commit(2, ATTEMPT + 1))
    log.append(DefineRecord(3, "lines", {"start": 3}))
    return log


def test_everything_that_a_log_says_is_reported(log: FileLog) -> None:
    found = report(log.path, last=10)
    assert found["topology"] == "words"
    assert (found["txid"], found["epoch"], found["incarnation"]) == (2, 1, log.state.incarnation)
    assert found["winners"] == [{"from": 1, "attempt": "1.0"}, {"from": 2, "attempt": "1.1"}]
    assert found["totals"] == {"tuples": 20, "batches": 2}
    sentinels = {"0": {"txid": 2, "attempt": "1.1"}}
    counts = {"partitions": 2, "kind": "opaque", "committedBy": "driver", "sentinels": sentinels}
    assert found["states"] == {"count": counts}
    assert found["pending"] == [{"txid": 3, "definitions": {"lines": {"start": 3}}}]
    assert [each["txid"] for each in found["commits"]] == [1, 2]
    assert found["commits"][1] == {
        "txid": 2, "attempt": "1.1", "at": "2023-11-14T22:13:20.002+00:00", "counts": {"tuples": 10},
        "spouts": {"lines": {"start": 2, "at": ["<2 bytes>", 1]}}, "touched": {"count": [0]},
    }  # fmt: skip


def test_what_json_has_not_is_a_text_in_it(log: FileLog, capsys: pytest.CaptureFixture[str]) -> None:
    log.append(replace(commit(3, ATTEMPT + 1), spouts={"lines": {"at": [float("nan"), float("-inf"), 0.5]}}))
    print_log(log.path, 1, as_json=True)
    print_history(log.path, 3, None, as_json=True)
    for line in capsys.readouterr().out.splitlines():
        found = json.loads(line, parse_constant=pytest.fail)  # NaN, which strict readers refuse
        assert found.get("commits", [found])[-1]["spouts"] == {"lines": {"at": ["nan", "-inf", 0.5]}}


@pytest.mark.parametrize(("last", "txids"), [(0, []), (1, [2]), (2, [1, 2])])
def test_only_the_last_commits_are_shown(log: FileLog, last: int, txids: list[int]) -> None:
    assert [each["txid"] for each in report(log.path, last)["commits"]] == txids


def test_who_writes_the_log_is_named_as_long_as_it_does(log: FileLog) -> None:
    assert f"process {os.getpid()} on " in report(log.path, 0)["writer"]
    log.close()
    assert report(log.path, 0)["writer"] is None


def test_a_record_that_is_not_finished_is_mentioned(log: FileLog) -> None:
    log.close()
    newest = max(log.path.glob("*.log"))
    newest.write_bytes(newest.read_bytes()[:-3])
    found = report(log.path, 0)
    assert found["tornBytes"] > 0
    assert found["pending"] == []
    assert f"{found['tornBytes']} bytes of an unfinished record" in trident("log", "log", cwd=log.path.parent).stdout


def test_tables_for_people_and_json_for_programs(log: FileLog) -> None:
    shown = trident("log", "log", cwd=log.path.parent)
    assert (shown.returncode, shown.stderr) == (0, "")
    rows = [re.split(" {2,}", line.strip()) for line in shown.stdout.splitlines()]
    for row in (
        ["count", "opaque", "2", "driver", "0: batch 2 (start 1, retry 1)"],
        ["1", "start 1", "2023-11-14 22:13:20.001", "10", "count: [0]", "lines: start=1, at=[<2 bytes>, 1]"],
        ["2", "start 1, retry 1", "2023-11-14 22:13:20.002", "10", "count: [0]", "lines: start=2, at=[<2 bytes>, 1]"],
    ):
        assert row in rows
    assert not set("│┃━─") & set(shown.stdout)
    assert "start 1 from batch 1; start 1, retry 1 from batch 2" in shown.stdout
    assert "defined, not committed: batch 3: lines: start=3" in shown.stdout
    assert f"process {os.getpid()} on" in shown.stdout

    whole = trident("log", "log", "--wide", cwd=log.path.parent)
    assert 'lines: {"start": 2, "at": ["<2 bytes>", 1]}' in whole.stdout

    as_json = trident("log", "log", "--json", "--last", "1", cwd=log.path.parent)
    assert json.loads(as_json.stdout) == report(log.path, 1) | {"path": "log"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wrods", "it is not there; there are some in trident-log/words"),
        ("nothing", "it is not there"),
        ("file", "it is a file"),
        ("trident-log", "there are some in trident-log/words"),
    ],
)
def test_what_is_no_log_is_answered_with_what_it_is_and_the_logs_there_are(
    log: FileLog, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.chdir(log.path.parent)
    shutil.copytree(log.path, "trident-log/words")
    Path("file").touch()
    assert _no_log(name).startswith(f"there is no transaction log in {name}: ")
    assert said in _no_log(name)


def test_an_error_of_the_log_is_of_the_framework(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="it has no segment of a log"):
        report(tmp_path, 1)


@pytest.mark.parametrize(("definition", "text"), [
    ({"start": 1, "end": 2}, "start=1, end=2"), ([1, 2, 3, 4], "[1, 2, 3, 4]"), ([1, 2, 3, 4, 5], "[1 … 5] (5)"),
    ({"base": "a/long/path/that/ends/in/a/folder/"}, "base=…/that/ends/in/a/folder/"),
    (["x" * 20] * 4 + [{"y": "z" * 20}], "[xxxxxxxxxxxxxxxxxxxx … y=zzzzzzzzzzzzzzzzzzzz] (5)"), (None, "None"),
])  # fmt: skip
def test_a_definition_is_shortened(definition: object, text: str) -> None:
    assert short(definition) == text


def test_a_shortened_definition_is_never_wider_than_asked() -> None:
    assert short({str(number): number for number in range(100)}, 30) == "0=0, 1=1, 2=2, 3=3, 4=4, 5=5,…"


def test_what_states_and_streams_mean_is_shown(log: FileLog) -> None:
    facts = {"kind": "opaque", "key": ["word: string"], "value": ["count: bigint"], "by": "Count", "of": []}
    stream = {"spout": "TextFileSpout", "promise": "transactional", "fields": ["line: string", "n: int"]}
    log.append(TopologyRecord({"count": {**facts, "streams": ["lines"]}}, {"lines": stream}))
    assert report(log.path, 0)["declared"]["streams"] == {"lines": stream}
    shown = trident("log", "log", "--last", "0", cwd=log.path.parent).stdout
    rows = [re.split(" {2,}", line.strip()) for line in shown.splitlines()]
    assert ["count", "word: string", "count: bigint", "Count()", "lines"] in rows
    assert ["lines", "TextFileSpout (transactional)", "line: string, n: int"] in rows


def test_the_time_of_a_batch_is_shown_as_a_time(
    log: FileLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = {"lines": {"start": 3}, "$time": {"now": 1_700_000_000_123, "tuples_at": 1_700_000_000_000}}
    log.append(CommitRecord(3, ATTEMPT + 1, definitions, {"count": (0,)}, {"tuples": 10}, 1_700_000_000_200))
    log.append(DefineRecord(4, "$time", {"now": 1_700_000_001_000}))
    monkeypatch.setenv("COLUMNS", "200")
    print_log(log.path, last=1, as_json=False)
    shown = capsys.readouterr().out
    assert "lines: start=3" in shown
    assert "time: 2023-11-14 22:13:20.123" in shown
    assert "defined, not committed: batch 4: time: 2023-11-14 22:13:21.000" in shown


def test_the_states_that_executors_commit_are_said(tmp_path: Path) -> None:
    log = FileLog.open(tmp_path / "log", "words")
    log.append(StartRecord(1, ["count"]))
    log.append(LayoutRecord("count", 2, "opaque"))
    log.append(LayoutRecord("total", 1, "opaque"))
    states = report(log.path, last=0)["states"]
    assert {name: state["committedBy"] for name, state in states.items()} == {"count": "executors", "total": "driver"}


def shown(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return trident("log", str(path), "--history", *words, cwd=path)


@pytest.mark.long
def test_the_history_is_a_line_for_each_batch(log: FileLog) -> None:
    printed = shown(log.path)
    assert printed.stdout.splitlines() == [
        f"1  2023-11-14 22:13:20.001  {FIRST}  10 tuples  lines: start=1, at=[<2 bytes>, 1]",
        f"2  2023-11-14 22:13:20.002  {SECOND}  10 tuples  lines: start=2, at=[<2 bytes>, 1]",
    ]
    for since in (("--since", "2"), ("--since-time", "2023-11-14T22:13")):
        lines = shown(log.path, "--json", *since).stdout.splitlines()
        assert [json.loads(line)["txid"] for line in lines] == ([2] if since[0] == "--since" else [1, 2])
    assert shown(log.path, "--since-time", "2024-01-01").stdout == ""


def test_a_gap_of_the_history_ends_the_list_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_state, "HISTORY", 2)
    with closing(FileLog.open(tmp_path / "log", "words", segment_bytes=1, history=Retention(batches=100))) as log:
        for txid in range(1, 31):
            log.append(commit(txid))
    (tmp_path / "log" / "00000001-0003.log").unlink()
    failed = shown(tmp_path / "log")
    assert failed.returncode == 1
    last = int(failed.stdout.splitlines()[-1].split()[0])
    assert f"lacks batches {last + 1} to " in failed.stderr


@pytest.mark.long
def test_secrets_in_definitions_are_not_shown(tmp_path: Path) -> None:
    with closing(FileLog.open(tmp_path / "log", "words")) as log:
        log.append(CommitRecord(1, ATTEMPT, {"files": {"at": ["https://u:pw@host/x?sig=abc"]}}, {}, {}, 0))
    for arguments in ([], ["--wide"], ["--json"]):
        text = shown(tmp_path / "log", *arguments).stdout
        assert "host/x" in text
        assert "pw" not in text
        assert "abc" not in text


@pytest.mark.quick
def test_the_log_of_a_driver_does_not_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    class Client:
        def log(self, topology: str) -> dict[str, str]:
            return {"text": "poison \x1b[31m \u202e\n\tat line 1\n"}

    print_logs(Client(), "words", follow=False)  # type: ignore[arg-type]
    assert capsys.readouterr().out == "poison \\u001b[31m \\u202e\n\tat line 1\n"
