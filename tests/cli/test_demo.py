"""`trident demo`: the counts of real text come out exact, killed or not, and it says so when they do not."""

from __future__ import annotations

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

from tests.harness.commands import last_txid, started, trident, until
from trident.cli.demo import DemoJob, kill_line
from trident.cli.demo_folder import DemoFolder, DemoText, count_words, find_text, standard_library
from trident.errors import LogHeldError, SpoutError, StateError, TridentError
from trident.log.file_log import FileLog

pytestmark = pytest.mark.slow

IN_PROCESS = ("--engine", "in_process")
LINE = "the cow jumped over the moon, the dog laughed to see such fun\n"
TEXT = DemoText(("a.txt",), 100_000, 2000, 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with text in the folder `text`."""
    (tmp_path / "text" / "inner").mkdir(parents=True)
    for number in range(8):
        (tmp_path / "text" / f"{number}.txt").write_text(LINE * (50 + number), encoding="utf-8")
    (tmp_path / "text" / "inner" / "last").write_text("no line end", encoding="utf-8")
    (tmp_path / "text" / "binary").write_bytes(b"\x00\xff")
    return tmp_path


def test_counts_are_exact_and_a_second_run_has_nothing_to_do(folder: Path) -> None:
    first = trident("demo", "text", *IN_PROCESS, cwd=folder)
    assert (first.returncode, first.stderr) == (0, "")
    lines = sum(50 + number for number in range(8))
    assert re.search(
        r"counting the words of 9 files, .* of text \(1 that are not UTF-8 text were left out\)", first.stdout
    )
    assert re.search(rf"\d\d batches with {lines + 1} tuples \(lines\) in .* tuples/s, .* words/s", first.stdout)
    assert f"exact: yes – 14 words that occur {lines * 13 + 3:,} times" in first.stdout
    rows = [re.split(" {2,}", line.strip()) for line in first.stdout.splitlines()]
    rows = rows[rows.index(["word", "count"]) + 1 :][:10]
    assert rows[0] == ["the", f"{3 * lines:,}"]
    assert len(rows) == 10

    second = trident("demo", "text", *IN_PROCESS, cwd=folder)
    assert second.returncode == 0
    assert "nothing new to count: everything was counted up to batch" in second.stdout
    assert "exact: yes" in second.stdout


@pytest.mark.long
def test_the_command_that_it_offers_works(folder: Path) -> None:
    done = trident("demo", "text", *IN_PROCESS, "--state-dir", "my state", cwd=folder)
    (offered,) = re.findall("ask for more: (.*)", done.stdout)
    program, *words = shlex.split(offered)
    assert Path(program).name == "trident"
    read = trident(*words, "--json", cwd=folder)
    values = {pair["key"][0]: pair["value"] for pair in json.loads(read.stdout)["values"]}
    counted = count_words(find_text([folder / "text"]).files)
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
def test_text_that_comes_is_counted_and_text_that_changes_is_noticed(folder: Path) -> None:
    trident("demo", "text", *IN_PROCESS, cwd=folder)
    (folder / "text" / "more.txt").write_text("more of the same\n", encoding="utf-8")
    more = trident("demo", "text", *IN_PROCESS, cwd=folder)
    assert more.returncode == 0
    assert re.search(r"1 batch with 1 tuple \(lines\) in .* \(continued after batch \d+\)", more.stdout)
    assert "exact: yes" in more.stdout

    (folder / "text" / "more.txt").write_text("more of tho same\n", encoding="utf-8")
    changed = trident("demo", "text", *IN_PROCESS, cwd=folder)
    assert changed.returncode == 1
    assert (
        "more.txt was read up to byte 17, and the bytes before that are different now: it was replaced"
        in changed.stderr
    )

    fresh = trident("demo", "text", *IN_PROCESS, "--fresh", cwd=folder)
    assert fresh.returncode == 0
    assert "exact: yes" in fresh.stdout


@pytest.mark.long
def test_kills_in_the_middle_of_commits_leave_the_counts_exact(folder: Path) -> None:
    DemoFolder(folder / "trident-demo-crash").prepare(["/other/text"], TEXT)  # what an earlier one left is forgotten
    done = trident("demo", "text", *IN_PROCESS, "--crash", "--crashes", "2", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    kills = [int(txid) for txid in re.findall(r"SIGKILL after the record of batch (\d+);", done.stdout)]
    assert len(kills) == 2
    assert kills == sorted(kills)
    assert "exact: yes" in done.stdout
    # A kill ends an epoch, and the next driver begins one.
    winners = json.loads(trident("log", "trident-demo-crash/log", "--json", cwd=folder).stdout)["winners"]
    assert [each["attempt"] for each in winners] == ["1.0", "2.0", "3.0"]
    assert [each["from"] for each in winners] == [1, *(txid + 1 for txid in kills)]


@pytest.mark.long
def test_a_demo_that_could_not_kill_fails(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(LINE, encoding="utf-8")
    done = trident("demo", "a.txt", *IN_PROCESS, "--crash", "--crashes", "3", cwd=tmp_path)
    assert done.returncode == 1
    assert "exact: yes" in done.stdout
    assert "not shown: only 0 of 3 kills" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_ends_the_job_with_the_demo(folder: Path, signum: signal.Signals, code: int) -> None:
    log_dir = folder / "trident-demo-crash" / "log"
    with (folder / "text" / "much.txt").open("w", encoding="utf-8") as much:
        much.write("".join(f"word{number}\n" for number in range(100_000)) * 30)  # seconds of work
    command = ("demo", "text", *IN_PROCESS, "--crash", "--crashes", "99")
    with started(*command, cwd=folder) as demo:
        until(lambda: last_txid(log_dir) >= 1, "the job commits")
        until(demo.descendants, "a job runs")  # the demo kills one after the other
        jobs = demo.descendants()
        os.kill(demo.process.pid, signum)
        assert demo.end()[0] == code
    until(lambda: not any(map(_lives, jobs)), "the job has ended")


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_whole_session_of_a_job_is_killed(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path / "demo")
    folder.prepare([], TEXT)
    child = "import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(600)"
    folder.module.write_text(
        f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {child!r}])\ntime.sleep(600)\n",
        encoding="utf-8",
    )
    output = tmp_path / "output"
    with DemoJob(folder, "in_process", tmp_path) as job:
        until(lambda: output.exists() and output.read_text(encoding="utf-8").strip(), "the job has a child")
        child_pid = int(output.read_text(encoding="utf-8"))
        assert os.getsid(child_pid) == job.pid
        assert not job.has_ended()
    assert not psutil.pid_exists(job.pid)
    assert not psutil.pid_exists(child_pid) or psutil.Process(child_pid).status() == psutil.STATUS_ZOMBIE


def test_what_a_failed_job_said_is_passed_on(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path / "demo")
    folder.prepare([], TEXT)
    folder.module.write_text("raise ValueError('no such luck')\n", encoding="utf-8")
    with (
        DemoJob(folder, "in_process", tmp_path) as job,
        pytest.raises(TridentError, match="exit code 1.*\n.*no such luck"),
    ):
        until(job.has_ended, "the job ends")


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
    for options in ([], ["--fresh"]):
        done = trident("demo", "text", *IN_PROCESS, "--state-dir", "text", *options, cwd=folder)
        assert done.returncode == 1
        assert "error: text is not the folder of a demo; nothing was changed" in done.stderr
    assert len(list((folder / "text").iterdir())) == 10


def test_counts_of_other_text_are_refused(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path)
    folder.prepare(["/some/text"], TEXT)
    with pytest.raises(StateError, match="has counted the words of /some/text, not of the standard library"):
        folder.prepare([], TEXT)
    folder.clear()
    folder.prepare([], TEXT)


def test_a_demo_that_runs_is_not_cleared(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path)
    folder.prepare([], TEXT)
    log = FileLog.open(folder.log_dir, "word-count")
    with pytest.raises(LogHeldError):
        folder.clear()
    log.close()
    folder.clear()
    assert not tmp_path.exists()


@pytest.mark.parametrize(("size", "batch"), [(1, 1 << 10), (1 << 20, 1 << 15), (32 << 20, 1 << 20), (1 << 40, 8 << 20)])
def test_there_are_tens_of_batches_in_limits_as_the_first_run_cut_them(tmp_path: Path, size: int, batch: int) -> None:
    folder = DemoFolder(tmp_path)
    assert folder.prepare([], DemoText(("a",), size, 1, 0)) == batch
    assert folder.prepare([], TEXT) == batch  # a later run keeps it


def test_words_are_counted_as_split_and_the_text_spout_have_it(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone  two\r\n\tone\r\r\n \n\xc3\xa9\x0cone")
    assert count_words([str(path)]) == Counter({"one": 1, "two": 1, "\tone\r": 1, "é\x0cone": 1})
    done = trident("demo", "a.txt", *IN_PROCESS, cwd=tmp_path)
    assert "exact: yes – 4 words that occur 4 times" in done.stdout


def test_text_is_found_once_and_only_where_it_is_text(folder: Path) -> None:
    text = folder / "text"
    (text / ".hidden").write_text("x", encoding="utf-8")
    (text / "link").symlink_to(text / "0.txt")
    (text / "latin").write_bytes(b"\xe9")
    (text / "empty").touch()
    found = find_text([text, text / "0.txt"])
    names = [*(f"{number}.txt" for number in range(8)), "inner/last"]
    assert found.files == tuple(str(text / name) for name in names)
    assert (found.skipped, found.lines) == (2, sum(50 + number for number in range(8)) + 1)
    assert found.size == sum(Path(file).stat().st_size for file in found.files)


@pytest.mark.parametrize(
    ("name", "said"), [("nothing", "there is no such file or folder"), ("none", "no text to count")]
)
def test_where_no_text_is_the_path_is_named(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(SpoutError, match=f"{name}.*{said}|{said}.*{name}"):
        find_text([tmp_path / name])


def test_the_standard_library_is_found_without_what_is_installed_into_it() -> None:
    paths = standard_library()
    assert Path(json.__file__) in paths
    assert all(path.suffix == ".py" and "site-packages" not in path.parts for path in paths)
