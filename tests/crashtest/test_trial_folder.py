"""Each run has a copy of the folder, of a bounded size, from which nothing leads back."""

from __future__ import annotations

from pathlib import Path

import pytest

from trident.crashtest.job_run import copy_folder
from trident.errors import TridentError


def copied(folder: Path, copy: Path, most_bytes: int = 1_000_000_000) -> list[str]:
    copy_folder(folder, copy, most_bytes, lambda text: None)
    return sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job" / "books").mkdir(parents=True)
    (tmp_path / "job" / "job.py").write_text("print()")
    (tmp_path / "job" / "books" / "a.txt").write_text("the cow")
    return tmp_path / "job"


def test_files_and_folders_are_copied_without_environments(folder: Path, tmp_path: Path) -> None:
    (folder / ".venv").mkdir()
    (folder / ".venv" / "large").write_bytes(b"x" * 10_000)
    assert copied(folder, tmp_path / "copy", 1_000) == ["books/a.txt", "job.py"]


def test_what_a_link_leads_to_is_copied(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "part").write_text("1")
    (folder / "table").symlink_to(tmp_path / "table")
    (folder / "file").symlink_to(tmp_path / "table" / "part")
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    (folder / "books" / "back").symlink_to(folder)
    (folder / "self").symlink_to(folder)
    assert copied(folder, tmp_path / "copy") == ["books/a.txt", "file", "job.py", "table/part"]
    assert not any(path.is_symlink() for path in (tmp_path / "copy").rglob("*"))


def test_a_folder_that_is_too_large_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "large").write_bytes(b"x" * 2_000_001)
    with pytest.raises(TridentError, match=r"which has more than 2 MB or 100,000 files\. Put the job"):
        copied(folder, tmp_path / "copy", 2_000_000)


def test_progress_is_told_of_a_large_one(folder: Path, tmp_path: Path) -> None:
    with (folder / "sparse").open("wb") as file:
        file.truncate(150_000_000)
    told: list[str] = []
    copy_folder(folder, tmp_path / "copy", 1_000_000_000, told.append)
    assert [text.rpartition(":")[2] for text in told] == [" 150 MB so far"]
