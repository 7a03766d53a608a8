"""`trident demo`: the counts of real text come out exact, killed or not, and it says so when they do not."""

import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.harness.commands import last_txid, lives, started, trident, until
from trident.cli.demo import DemoFolder, DemoJob, count_words, find_text, kill_line
from trident.errors import LogHeldError, SpoutError, StateError, TridentError
from trident.log.file_log import FileLog

pytestmark = pytest.mark.slow

IN_PROCESS = ("--engine", "in_process")
LINE = "the cow jumped over the moon, the dog laughed to see such fun\n"
TEXT = [Path("a.txt")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with text in the folder `text`."""
    (tmp_path / "text" / "inner").mkdir(parents=True)
    for number in range(8):
        (tmp_path / "text" / f"{number}.txt").write_text(LINE * (50 + number), encoding="utf-8")
    (tmp_path / "text" / "inner" / "last").write_text("no line end", encoding="utf-8")
    (tmp_path / "text" / "binary").write_bytes(b"\x00\xff")
    return tmp_path


def test_counts_are_exact_and_a_second_demo_begins_afresh(folder: Path) -> None:
    first = trident("demo", "text", *IN_PROCESS, cwd=folder)
    assert first.returncode == 0, first.stderr
    lines = sum(50 + number for number in range(8))
    assert re.search(r"counting the words of 9 files, .* of text\n", first.stdout)
    assert re.search(rf"\d\d batches with {lines + 1} tuples \(lines\) in .* tuples/s", first.stdout)
    assert f"exact: yes – 14 words that occur {lines * 13 + 3:,} times" in first.stdout
    rows = [re.split(" {2,}", line.strip()) for line in first.stdout.splitlines()]
    rows = rows[rows.index(["word", "count"]) + 1 :][:10]
    assert rows[0] == ["the", f"{3 * lines:,}"]
    assert len(rows) == 10

    (folder / "text" / "0.txt").write_text("another text", encoding="utf-8")
    second = trident("demo", "text", *IN_PROCESS, cwd=folder)
    assert second.returncode == 0
    assert f"exact: yes – 16 words that occur {(lines - 50) * 13 + 5:,} times" in second.stdout


@pytest.mark.long
def test_the_command_that_it_offers_works(folder: Path) -> None:
    done = trident("demo", "text", *IN_PROCESS, "--state-dir", "my state", cwd=folder)
    (offered,) = re.findall("ask for more: (.*)", done.stdout)
    program, *words = shlex.split(offered)
    assert Path(program).name == "trident"
    read = trident(*words, "--json", cwd=folder)
    values = {pair["key"][0]: pair["value"] for pair in json.loads(read.stdout)["values"]}
    counted = count_words(find_text([folder / "text"]))
    assert len(values) == 2
    assert values == {word: counted[word] for word in values}


@pytest.mark.parametrize(("found", "offered"), [("/usr/bin/trident", "trident"), (None, "bin/trident")])
def test_it_offers_its_own_path_where_it_is_not_on_the_path(
    found: str | None, offered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "trident"), "demo"])
    monkeypatch.setattr(shutil, "which", lambda name: found)
    assert DemoFolder(Path("demo")).command("the")[0] == offered


@pytest.mark.long
def test_kills_in_the_middle_of_commits_leave_the_counts_exact(folder: Path) -> None:
    DemoFolder(folder / "trident-demo").prepare(TEXT, 100_000)  # what an earlier one left is forgotten
    done = trident("demo", "text", *IN_PROCESS, "--crash", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    kills = [int(txid) for txid in re.findall(r"SIGKILL after the record of batch (\d+);", done.stdout)]
    assert len(kills) == 3
    assert kills == sorted(kills)
    assert "exact: yes" in done.stdout
    # A kill ends an epoch, and the next driver begins one.
    winners = json.loads(trident("log", "trident-demo/log", "--json", cwd=folder).stdout)["winners"]
    assert [each["attempt"] for each in winners] == ["1.0", "2.0", "3.0", "4.0"]
    assert [each["from"] for each in winners] == [1, *(txid + 1 for txid in kills)]


@pytest.mark.long
def test_a_text_of_one_batch_is_killed_in_it_and_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(LINE, encoding="utf-8")
    done = trident("demo", "a.txt", *IN_PROCESS, "--crash", cwd=tmp_path)
    assert (done.returncode, done.stdout.count("SIGKILL after the record of batch")) == (0, 3)
    assert "exact: yes – 11 words that occur 13 times" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_job_with_the_demo(folder: Path, signum: signal.Signals, code: int) -> None:
    log_dir = folder / "trident-demo" / "log"
    with (folder / "text" / "much.txt").open("w", encoding="utf-8") as much:
        much.write("".join(f"word{number}\n" for number in range(100_000)) * 30)  # seconds of work
    with started("demo", "text", *IN_PROCESS, "--crash", cwd=folder) as demo:
        until(lambda: last_txid(log_dir) >= 1, "the job commits")
        until(demo.descendants, "a job runs")  # the demo kills one after the other
        jobs = demo.descendants()
        os.kill(demo.process.pid, signum)
        assert demo.end()[0] == code
    until(lambda: not any(map(lives, jobs)), "the job has ended")


def test_the_whole_session_of_a_job_is_killed(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path / "demo")
    folder.prepare(TEXT, 100_000)
    child = "import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(600)"
    folder.module.write_text(
        f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {child!r}])\ntime.sleep(600)\n",
        encoding="utf-8",
    )
    output = tmp_path / "output"
    with DemoJob(folder, "in_process", tmp_path) as job:
        until(lambda: output.exists() and output.read_text(encoding="utf-8").strip(), "the job has a child")
        child_pid = int(output.read_text(encoding="utf-8"))
        assert os.getsid(child_pid) == job.process.pid
    assert not psutil.pid_exists(job.process.pid)
    assert not psutil.pid_exists(child_pid) or psutil.Process(child_pid).status() == psutil.STATUS_ZOMBIE


def test_what_a_failed_job_said_is_passed_on(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path / "demo")
    folder.prepare(TEXT, 100_000)
    folder.module.write_text("raise ValueError('no such luck')\n", encoding="utf-8")
    with (
        DemoJob(folder, "in_process", tmp_path) as job,
        pytest.raises(TridentError, match="exit code 1.*\n.*no such luck"),
    ):
        job.waits_for(lambda: False)


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (8, "batch 8 was in the store but not in the log"),
        (7, "had not reached the store"),
        (None, "had not reached the store"),
    ],
)
def test_a_kill_says_where_the_store_was(stored: int | None, said: str) -> None:
    line = kill_line(2, 7, stored)
    assert line.startswith("kill 2: SIGKILL after the record of batch 7; ")
    assert said in line


def test_without_java_the_message_offers_the_other_engine(folder: Path) -> None:
    done = trident("demo", "text", cwd=folder, JAVA_HOME="nowhere")
    assert done.returncode == 1
    assert "JAVA_HOME is 'nowhere'" in done.stderr
    assert "--engine in_process" in done.stderr
    assert not (folder / "trident-demo").exists()


def test_a_folder_of_something_else_is_left_alone(folder: Path) -> None:
    done = trident("demo", "text", *IN_PROCESS, "--state-dir", "text", cwd=folder)
    assert done.returncode == 1
    assert "error: text is not the folder of a demo; nothing was changed" in done.stderr
    assert len(list((folder / "text").iterdir())) == 10


@pytest.mark.parametrize("given", ['{"mine": 1}', "no JSON", "1"])
def test_a_folder_with_a_demo_json_of_something_else_is_left_alone(tmp_path: Path, given: str) -> None:
    for name in ("demo.json", "log", "notes"):
        (tmp_path / name).write_text(given, encoding="utf-8")
    with pytest.raises(StateError, match="is not the folder of a demo; nothing was changed"):
        DemoFolder(tmp_path).prepare(TEXT, 100_000)
    assert [(tmp_path / name).read_text(encoding="utf-8") for name in ("demo.json", "log", "notes")] == [given] * 3


def test_what_else_is_in_the_folder_of_a_demo_is_kept(tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "demo").symlink_to(tmp_path / "linked")
    folder = DemoFolder(tmp_path / "demo")
    folder.prepare(TEXT, 100_000)
    (folder.path / "notes").write_text("mine", encoding="utf-8")
    (folder.path / "count").mkdir()
    folder.prepare(TEXT, 100_000)
    assert (folder.path / "notes").read_text(encoding="utf-8") == "mine"
    assert not (folder.path / "count").exists()
    folder.module.write_text("edited = True\n", encoding="utf-8")
    with pytest.raises(StateError, match="has another word_count.py than a demo makes; nothing was changed"):
        folder.prepare(TEXT, 100_000)
    assert folder.module.read_text(encoding="utf-8") == "edited = True\n"


def test_a_second_demo_within_its_text_does_not_count_the_first_one(folder: Path) -> None:
    elsewhere = folder / "elsewhere"  # where other topologies have their logs
    for _ in range(2):
        done = trident("demo", ".", *IN_PROCESS, cwd=folder / "text", TRIDENT_LOG_DIR=str(elsewhere))
        assert done.returncode == 0, done.stderr
        assert "counting the words of 9 files" in done.stdout
    assert not elsewhere.exists()


def test_a_demo_that_runs_is_not_cleared(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path)
    folder.prepare(TEXT, 100_000)
    log = FileLog.open(folder.log_dir, "word-count")
    with pytest.raises(LogHeldError):
        folder.prepare(TEXT, 100_000)
    log.close()
    folder.prepare(TEXT, 100_000)
    assert not folder.log_dir.exists()


@pytest.mark.parametrize(("size", "batches"), [(1, 0), (1 << 14, 16), (1 << 20, 32), (32 << 20, 32), (1 << 30, 128)])
def test_there_are_tens_of_batches_within_limits(tmp_path: Path, size: int, batches: int) -> None:
    assert DemoFolder(tmp_path).prepare(TEXT, size) == batches


def test_words_are_counted_as_split_and_the_text_spout_have_it(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone  two\r\n\tone\r\r\n \n\xc3\xa9\x0cone")
    assert count_words([path]) == Counter({"one": 1, "two": 1, "\tone\r": 1, "é\x0cone": 1})
    done = trident("demo", "a.txt", *IN_PROCESS, cwd=tmp_path)
    assert "exact: yes – 4 words that occur 4 times" in done.stdout


def test_text_is_found_once_and_only_where_it_is_text(folder: Path) -> None:
    text = folder / "text"
    (text / ".hidden").write_text("x", encoding="utf-8")
    (text / "link").symlink_to(text / "0.txt")
    (text / "latin").write_bytes(b"\xe9")
    (text / "empty").touch()
    names = [*(f"{number}.txt" for number in range(8)), "inner/last"]
    assert find_text([text, text / "0.txt"]) == [text / name for name in names]


@pytest.mark.parametrize(
    ("name", "said"), [("nothing", "there is no such file or folder"), ("none", "no text to count")]
)
def test_where_no_text_is_the_path_is_named(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(SpoutError, match=f"{name}.*{said}|{said}.*{name}"):
        find_text([tmp_path / name])


def test_what_is_installed_into_a_folder_is_not_its_text(tmp_path: Path) -> None:
    for name in ("own.py", "own.txt", "site-packages/other.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(LINE, encoding="utf-8")
    assert find_text([tmp_path], "*.py") == [tmp_path / "own.py"]
