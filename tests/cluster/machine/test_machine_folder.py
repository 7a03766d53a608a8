"""The folder of a supervisor, and the reading of logs in parts."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.cluster.machine.machine_folder import MachineFolder, read_log
from trident.cluster_errors import ClusterError


def test_a_supervisor_keeps_its_id(tmp_path: Path) -> None:
    first = MachineFolder(tmp_path)
    first.close()
    first.close()
    second = MachineFolder(tmp_path)
    assert second.id == first.id
    second.close()


def test_two_supervisors_cannot_share_a_folder(tmp_path: Path) -> None:
    first = MachineFolder(tmp_path)
    with pytest.raises(ClusterError, match="another supervisor runs in"):
        MachineFolder(tmp_path)
    first.close()


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


def test_a_log_that_was_begun_again_is_read_from_its_begin(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("new\n")
    assert read_log(file, 5000) == {"text": "new\n", "offset": 0, "next": 4, "lineEnd": 4}


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read_log(tmp_path / "none", 7) == {"text": "", "offset": 0, "next": 0, "lineEnd": 0}
