"""The file of an embedded cluster: held by others, damaged, full, of another program, forked."""

import contextlib
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.harness.cluster_session import SessionProcess
from tests.harness.cluster_states import opened
from tests.harness.commands import until
from trident.cluster_state.cluster_address import open_cluster_state
from trident.errors import ClusterError, ClusterUnreachable
from trident.nodes import sqlite_nodes
from trident.nodes.sqlite_nodes import SqliteNodes, holders_text, writers_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cluster"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the file as a process does that was stopped in the middle of a change."""
    with contextlib.closing(sqlite3.connect(folder / "cluster.db", isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


def test_a_change_waits_while_another_process_holds_the_file(folder: Path) -> None:
    with opened(folder) as one:
        with held(folder):
            thread = threading.Thread(target=one.state.set_data, args=("/a", b"1"))
            thread.start()
            thread.join(0.3)
            assert thread.is_alive()
            assert one.state.get_data("/a") is None  # readers do not wait
        thread.join()
        assert one.state.get_data("/a") == b"1"


def test_a_file_that_is_held_beyond_the_timeout_is_an_error_and_no_session_is_lost(folder: Path) -> None:
    with opened(folder, 1.0) as one, opened(folder, 1.0) as other, opened(folder, 1.0) as looks:
        one.state.set_ephemeral_node("/one", b"1")
        other.state.set_ephemeral_node("/other", b"1")
        assert looks.state.get_children("/", watch=True) == ["one", "other"]
        with held(folder):
            said = r"cluster.db was held by another process for 1 s; is one stopped"
            with pytest.raises(ClusterUnreachable, match=said):
                one.state.set_data("/a", b"1")
            with pytest.raises(ClusterUnreachable, match="was held by another process"):
                open_cluster_state(folder, 0.1)
        assert one.take() == other.take() == looks.take() == []
        one.state.set_data("/a", b"1")
        looks.told(("changed", "/"))


@pytest.mark.slow
def test_the_end_of_a_process_is_noticed_long_before_its_lease_has_run_out(folder: Path) -> None:
    with opened(folder, 60.0) as looks, SessionProcess(str(folder), 60.0) as owner:
        owner.ask("state.set_ephemeral_node('/leader', b'1')")
        looks.state.get_data("/leader", watch=True)
        owner.kill()
        looks.told(("changed", "/leader"), limit_s=30.0)


@pytest.mark.slow
def test_what_killed_processes_left_is_gone_when_the_next_one_opens(folder: Path) -> None:
    with SessionProcess(str(folder), 60.0) as owner:
        owner.ask("state.set_ephemeral_node('/leader', b'1')")
        owner.kill()
    with opened(folder) as looks:
        assert looks.state.get_children("/") == []


@pytest.mark.slow
def test_a_session_lasts_as_long_as_its_process_and_not_as_one_forked_from_it(folder: Path) -> None:
    with opened(folder, 0.5) as looks, SessionProcess(str(folder), 0.5) as owner:
        owner.ask("state.set_ephemeral_node('/leader', b'1')")
        child = owner.ask("[pid for pid in [__import__('os').fork()] if pid or __import__('time').sleep(600)][0]")
        owner.pause()
        time.sleep(1.5)  # longer than others look for sessions that are over
        assert looks.state.get_data("/leader", watch=True) == b"1"
        owner.kill()
        looks.told(("changed", "/leader"))
        os.kill(child, signal.SIGKILL)


def test_what_owns_something_and_has_no_file_is_over(folder: Path) -> None:
    with opened(folder) as looks:
        with contextlib.closing(sqlite3.connect(folder / "cluster.db")) as db, db:
            db.execute("INSERT INTO node VALUES ('/a', '/', 'a', x'', 0, 'of a backup')")
        assert looks.state.get_data("/a", watch=True) == b""
        looks.told(("changed", "/a"))
        assert looks.state.get_data("/a") is None


def of_another_program(file: Path) -> None:
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE theirs (a)")


def of_version(version: int) -> Callable[[Path], None]:
    def spoil(file: Path) -> None:
        with opened(file.parent):
            pass
        with closing(sqlite3.connect(file)) as db:
            db.execute(f"PRAGMA user_version = {version}")

    return spoil


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda file: file.write_bytes(b"something else entirely " * 100), "is not the state file of a cluster; name"),
        (of_another_program, "belongs to another program; name another folder"),
        (of_version(1), "is of version 1; this version of the software reads 2"),
        (of_version(7), "is of version 7; this version of the software reads 2"),
        (Path.mkdir, "the state of the cluster, cannot be written"),
    ],
)
def test_a_file_of_other_software_is_left_as_it_is(folder: Path, spoil: Callable[[Path], None], said: str) -> None:
    folder.mkdir()
    file = folder / "cluster.db"
    spoil(file)
    before = file.is_file() and file.read_bytes()[100:]  # behind the header, which says how SQLite keeps its journal
    with pytest.raises(ClusterError, match=f"cluster.db.* {said}"):
        open_cluster_state(folder)
    assert (file.is_file() and file.read_bytes()[100:]) == before


def test_a_damaged_file_is_an_error(folder: Path) -> None:
    with opened(folder) as one:
        for number in range(200):
            one.state.set_data(f"/all/{number}", b"x" * 1000)
    with (folder / "cluster.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 100_000)
    with pytest.raises(ClusterError, match="cluster.db, the state of the cluster, is damaged"), opened(folder) as one:
        one.state.get_data_below("/all")


def test_a_full_disk_is_an_error_and_what_was_there_is_kept(folder: Path) -> None:
    with opened(folder) as one:
        one.state.set_data("/a", b"kept")
        state = one.state
        assert isinstance(state._nodes, SqliteNodes)
        state._nodes._writer._db.execute("PRAGMA max_page_count = 20")
        said = "the disk of .*cluster.db, the state of the cluster, is full; nothing was"
        with pytest.raises(ClusterError, match=said):
            state.set_data("/a", b"x" * 900_000)
        assert state.get_data("/a") == b"kept"
        state._nodes._writer._db.execute("PRAGMA max_page_count = 100000")
        state.set_data("/a", b"x" * 900_000)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterError, match="the folder .*/file/cluster of the cluster cannot be made: Not a directory"):
        open_cluster_state(tmp_path / "file" / "cluster")


def test_a_file_that_is_removed_while_it_is_open_is_an_error(folder: Path) -> None:
    with opened(folder, 1.0) as one:
        shutil.rmtree(folder)
        said = "cluster.db, the state of the cluster, was removed or replaced while it was"
        with pytest.raises(ClusterError, match=said):
            one.state.set_data("/a", b"1")
        with opened(folder) as other:  # another cluster, in the same place
            other.state.set_data("/a", b"2")
            with pytest.raises(ClusterError, match="was removed or replaced"):
                one.state.set_data("/a", b"1")
            assert other.state.get_data("/a") == b"2"
        one.told(("suspended", ""))


def test_a_folder_that_is_made_is_for_its_user_alone(folder: Path) -> None:
    with opened(folder):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_closed_state_leaves_no_file_open(folder: Path) -> None:
    for _ in range(3):
        with opened(folder) as one:
            one.state.set_data("/a", b"1")
    assert not [file for file in psutil.Process().open_files() if "cluster.db" in file.path]
    assert [path.name for path in folder.iterdir()] == ["cluster.db"]


def test_a_state_whose_file_is_held_can_be_closed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = open_cluster_state(folder, 0.5)
    with held(folder), caplog.at_level(logging.WARNING):
        state.close()
    assert "what this session owns goes when another process looks" in caplog.text


def test_who_watched_first_is_told_though_another_one_reads_before_the_next_look(folder: Path) -> None:
    with opened(folder) as one, opened(folder) as other:
        other.state.set_data("/a", b"1")
        told = threading.Event()
        one.state.register(lambda event: told.set() if event.path == "/a" else None)
        for number in range(20):  # whenever the looks are
            told.clear()
            one.state.get_data("/a", watch=True)
            other.state.set_data("/a", b"%d" % number)
            one.state.get_data("/a", watch=True)
            assert told.wait(5)


def test_a_session_goes_on_when_files_can_be_opened_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as one, opened(folder) as other:
        told = {kind: threading.Event() for kind in ("suspended", "connected", "changed")}
        one.state.register(lambda event: told[event.kind].set())
        other.state.create_ephemeral_node("/e", b"")
        with monkeypatch.context() as patched:
            patched.setattr(sqlite_nodes, "is_locked", raise_too_many_files)
            assert told["suspended"].wait(10)
        assert one.state.get_data("/a", watch=True) is None
        other.state.set_data("/a", b"1")
        assert told["changed"].wait(10)


def raise_too_many_files(_: Path) -> bool:
    raise OSError(24, "Too many open files")


def test_a_folder_whose_sessions_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as one:
        one.state.create_ephemeral_node("/e", b"")
        monkeypatch.setattr(sqlite_nodes, "is_locked", raise_too_many_files)
        with pytest.raises(ClusterError, match="cannot be used: .*Too many open files; check its rights"):
            open_cluster_state(folder, 10.0)
        monkeypatch.undo()


_HOLD = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not tell who holds files")
def test_a_process_that_holds_the_file_is_named_and_whether_it_is_stopped(tmp_path: Path) -> None:
    file = tmp_path / "cluster.db"
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (x)")
        assert holders_text(file) == ""
        command = [sys.executable, "-c", _HOLD, str(file)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            assert writers_of(file) == {holder.pid}
            assert holders_text(file) == f" Process {holder.pid} holds it."
            os.kill(holder.pid, signal.SIGSTOP)
            until(lambda: psutil.Process(holder.pid).status() == psutil.STATUS_STOPPED, "it is stopped")
            assert f"kill -CONT {holder.pid}" in holders_text(file)
            holder.kill()
        until(lambda: writers_of(file) == set(), "nobody holds it")
