"""The folder of a supervisor, and logs in parts; the processes of drivers: their end is noticed, and ends what they started."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.commands import until
from trident.cluster import driver_main
from trident.cluster.driver_slot import RUN_VARIABLE, DriverProcess, DriverSlot, Wanted, adopt, start_driver
from trident.cluster.machine_folder import DriverEnd, DriverOrder, MachineFolder, read_log
from trident.cluster_state.cluster_records import Assignment, NodePort
from trident.errors import ClusterError


def test_a_supervisor_keeps_its_id_and_no_other_shares_its_folder(tmp_path: Path) -> None:
    first = MachineFolder(tmp_path)
    with pytest.raises(ClusterError, match="another supervisor runs in"):
        MachineFolder(tmp_path)
    first.close()
    first.close()
    second = MachineFolder(tmp_path)
    assert second.id == first.id
    second.close()


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterError, match=r"cannot use the folder .*file"):
        MachineFolder(tmp_path / "file")


def test_logs_of_topologies_that_are_long_gone_are_removed(tmp_path: Path) -> None:
    folder = MachineFolder(tmp_path)
    week = time.time() - 8 * 86400
    for name in ("gone-1-5", "here-1-5", "new-1-5"):
        folder.log_file(name).write_text("line")
        os.utime(folder.log_file(name), (week, week))
    os.utime(folder.log_file("new-1-5"))
    folder.remove_old_logs(["here-1-5"])
    assert [folder.log_file(name).exists() for name in ("gone-1-5", "here-1-5", "new-1-5")] == [False, True, True]
    folder.close()


@pytest.mark.slow
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=20), st.integers(4, 40))
def test_a_log_that_is_followed_is_read_whole_and_once(lines: list[str], limit: int) -> None:
    written = "".join(f"{line}\n" for line in lines)
    read, offset = "", 0
    with tempfile.NamedTemporaryFile() as file:
        file.write(written.encode())
        file.flush()
        while (part := read_log(Path(file.name), offset, limit))["next"] != offset:
            read, offset = read + str(part["text"]), int(str(part["next"]))
    assert read == written


def test_the_end_of_a_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("".join(f"line {number} ö\n" for number in range(100)), encoding="utf-8")
    part = read_log(file, None, limit=30)
    assert part["text"] == "line 98 ö\nline 99 ö\n"
    assert read_log(file, int(str(part["next"])))["text"] == ""


def test_a_log_that_was_begun_again_is_read_from_its_begin_and_none_is_empty(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("new\n" * 20)
    assert read_log(file, 5000, limit=40) == {"text": "new\n" * 10, "offset": 0, "next": 40, "lineEnd": 40}
    assert read_log(tmp_path / "none", 7) == {"text": "", "offset": 0, "next": 0, "lineEnd": 0}


def order(folder: Path) -> DriverOrder:
    return DriverOrder(
        str(folder), "t-1-5", "node", 6700, "host", 7.0, 1, "hash", str(folder), str(folder / "log"),
        str(folder / "end"), "a-run-of-tests",
    )  # fmt: skip


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[DriverProcess]:
    """A process that has started two others: one in its session, one in a session of its own."""
    program = (
        "import subprocess, sys\n"
        "rest = [sys.executable, '-c', 'import signal; signal.pause()']\n"
        "near = subprocess.Popen(rest, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)\n"
        "far = subprocess.Popen(rest, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)\n"
        "print(near.pid, far.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    environment = {**os.environ, RUN_VARIABLE: "a-run-of-tests"}
    child = subprocess.Popen(
        [sys.executable, "-c", program, driver_main.__name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True, env=environment,
    )  # fmt: skip
    assert child.stdout is not None
    others = [int(each) for each in child.stdout.readline().split()]
    made = DriverProcess(order(tmp_path), psutil.Process(child.pid), child)
    made.others = others  # type: ignore[attr-defined]
    yield made
    for each in [child.pid, *others]:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    child.communicate()


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_a_driver_had_started_is_killed_when_it_has_died(parent: DriverProcess, is_stopped: bool) -> None:
    assert not parent.has_ended()
    if is_stopped:
        os.kill(parent.pid, signal.SIGSTOP)
        until(lambda: psutil.Process(parent.pid).status() == psutil.STATUS_STOPPED, "it is stopped")
        parent.end()  # it cannot hear that
        assert not parent.has_ended()
        parent.kill()
    else:
        os.kill(parent.pid, signal.SIGKILL)
    until(parent.has_ended, "its end is noticed")
    assert parent.how == "it was ended by SIGKILL"
    others: list[int] = parent.others  # type: ignore[attr-defined]
    until(lambda: all(map(gone, others)), "what it had started is gone")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (f"no answer from redis://ann:hush@host/0\n{'y' * 1990}\n", "y" * 1990),
        (f"{'x' * 1000} redis://ann:hush@host/0 {'y' * 1991}\n", "@host/0 " + "y" * 1991),
        (None, ""),
    ],
)
def test_what_a_driver_said_last_is_whole_lines_without_half_a_password(
    tmp_path: Path, parent: DriverProcess, printed: str | None, said: str
) -> None:
    folder, deaths = MachineFolder(tmp_path / "machine"), list[tuple[str, Any]]()
    unused: Any = None
    slot = DriverSlot(6700, folder, "", "host", unused, unused, deaths)
    slot.driver = parent
    file = folder.output_file("t-1-5")
    file.mkdir() if printed is None else file.write_text(printed)

    def has_ended() -> bool:
        slot.look(0.0, 0.0)
        return not slot.is_busy

    os.kill(parent.pid, signal.SIGKILL)
    until(has_ended, "its end is noticed")
    (reason,) = (death.reason for _, death in deaths)
    assert reason.removeprefix("it was ended by SIGKILL").removeprefix("; it said last: ").lstrip("*") == said
    folder.close()


def test_what_keeps_a_driver_from_its_start_is_told_once(tmp_path: Path) -> None:
    folder, reports = MachineFolder(tmp_path / "machine"), list[tuple[str, Any]]()
    code = Mock(prepare=Mock(side_effect=[ClusterError("no room"), ClusterError("no room"), OSError("no files")]))
    driver = Assignment.DRIVER
    wanted = Wanted("t-1-5", Assignment("", {}, {driver: NodePort(folder.id, 6700)}, {driver: 7.0}, "hash", 1))
    with ThreadPoolExecutor(1) as fetching:
        slot = DriverSlot(6700, folder, "", "host", code, fetching, reports)

        def told() -> bool:
            slot.want(time.monotonic(), wanted)
            return len(reports) == 2

        until(told, "both are told")
    assert [(storm_id, said.error) for storm_id, said in reports] == [
        ("t-1-5", "t-1-5 cannot be started yet: no room"),
        ("t-1-5", "t-1-5 cannot be started yet: no files"),
    ]
    folder.close()


def test_a_driver_is_adopted_by_its_name_and_only_while_it_runs(tmp_path: Path, parent: DriverProcess) -> None:
    file = tmp_path / "6700.json"
    parent.order.write(file)
    adopted = adopt(file)
    assert adopted is not None
    assert (adopted.pid, adopted.adopted) == (parent.pid, True)
    replace(parent.order, run="another-run").write(file)
    assert adopt(file) is None
    parent.order.write(file)
    os.kill(parent.pid, signal.SIGKILL)
    until(adopted.has_ended, "the end of an adopted driver is noticed")
    assert adopt(file) is None


def test_what_a_driver_left_that_died_unsupervised_is_killed(tmp_path: Path, parent: DriverProcess) -> None:
    file = tmp_path / "6700.json"
    parent.order.write(file)
    os.kill(parent.pid, signal.SIGKILL)
    until(lambda: gone(parent.pid), "it has died while no supervisor was there")
    assert adopt(file) is None
    others: list[int] = parent.others  # type: ignore[attr-defined]
    until(lambda: all(map(gone, others)), "what it had started is gone")


@pytest.mark.parametrize("text", ["", "{", '{"other": 1}'])
def test_a_file_that_is_no_order_is_of_no_driver(tmp_path: Path, text: str) -> None:
    (tmp_path / "6700.json").write_text(text)
    assert adopt(tmp_path / "6700.json") is None
    assert adopt(tmp_path / "none.json") is None


@pytest.mark.slow
def test_a_driver_that_cannot_read_its_order_ends_and_says_why(tmp_path: Path) -> None:
    wrong = replace(order(tmp_path), cluster="nonsense://x")
    made = start_driver(wrong, tmp_path / "6700.json", tmp_path / "out", dict(os.environ))
    until(made.has_ended, "it ends")
    assert made.how == "it ended with exit code 1"
    end = DriverEnd.read(tmp_path / "end")
    assert end is not None
    assert (end.told, end.ran_secs) == (False, 0.0)
    assert "nonsense://x" in end.reason


@pytest.mark.parametrize("main", [driver_main.__name__, "trident.cluster.driver.driver_main"], ids=["now", "formerly"])
def test_a_driver_is_adopted_and_not_what_it_has_forked(tmp_path: Path, main: str) -> None:
    file = tmp_path / "6700.json"
    order(tmp_path).write(file)
    program = "import os, sys; forked = os.fork(); forked and print(forked, flush=True); sys.stdin.read()"
    environment = {**os.environ, RUN_VARIABLE: "a-run-of-tests"}
    with subprocess.Popen(
        [sys.executable, "-c", program, main], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True, env=environment, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        forked, adopted = int(child.stdout.readline()), adopt(file)
        assert adopted is not None
        assert adopted.pid == child.pid
        child.kill()
        child.wait()
        assert adopt(file) is None
        until(lambda: gone(forked), "it is killed")


@pytest.mark.slow
def test_an_order_is_written_once_before_its_driver_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order(tmp_path).write(tmp_path / "6700.json")
    full_disk = OSError(28, "No space left on device")
    monkeypatch.setattr(DriverOrder, "write", Mock(side_effect=[None, full_disk]))
    made = start_driver(order(tmp_path), tmp_path / "6700.json", tmp_path / "out", dict(os.environ))
    assert DriverOrder.read(tmp_path / "6700.json") == made.order
    until(made.has_ended, "a driver of a topology that is not in the cluster ends")
    end = DriverEnd.read(tmp_path / "end")
    assert end is not None
    assert (end.told, end.reason) == (True, "moved")
