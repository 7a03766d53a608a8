"""Which points of which batches are chosen; and the copy of the folder that each run has, from which nothing leads back."""

from __future__ import annotations

from pathlib import Path

import pytest

from trident.crashtest import USUAL, KillMoment
from trident.crashtest.job_run import FunctionCall, KillPoint, choose, copy_folder
from trident.errors import TridentError

CALLS = [
    FunctionCall(0, batch, 2.0, ("job.py:4", "job.py:5", *["job.py:6", "job.py:7"] * 50, "job.py:8"))
    for batch in range(5)
]


def test_the_moments_come_in_turn_and_after_is_the_first() -> None:
    assert [point.moment for point in choose(CALLS, 8, USUAL, 1)] == [*USUAL, *USUAL[:2]]
    assert USUAL[0] is KillMoment.after
    assert KillMoment.older not in USUAL


def test_no_point_comes_twice_while_there_are_others() -> None:
    points = choose(CALLS, 5, [KillMoment.after], 1)
    assert {point.batch for point in points} == {0, 1, 2, 3, 4}
    assert len(choose(CALLS, 7, [KillMoment.after], 1)) == 7


def test_a_seed_chooses_the_same_points_again() -> None:
    assert choose(CALLS, 12, tuple(KillMoment), 5) == choose(CALLS, 12, tuple(KillMoment), 5)
    assert choose(CALLS, 12, tuple(KillMoment), 5) != choose(CALLS, 12, tuple(KillMoment), 6)


def test_a_line_of_a_loop_is_no_likelier_than_another_and_the_first_is_none() -> None:
    lines = [point.line for point in choose(CALLS, 40, [KillMoment.line], 2)]
    assert 0 not in lines
    assert sum(line in (1, 102) for line in lines) > 8, "two of four lines run once, a hundred others are a loop's"


def test_a_function_without_lines_is_killed_at_a_time() -> None:
    (point,) = choose([FunctionCall(0, 3, 2.0)], 1, [KillMoment.line], 1)
    assert (point.moment, point.batch, point.of_s) == (KillMoment.time, 3, 2.0)
    assert 0.1 <= (point.after_s or 0) <= 1.9


def test_an_older_checkpoint_needs_a_batch_before() -> None:
    assert choose(CALLS[:1], 3, [KillMoment.older], 1) == []
    points = choose(
        [FunctionCall(0, 0, 1.0), FunctionCall(1, 3, 1.0), FunctionCall(1, 4, 1.0)], 3, [KillMoment.older], 1
    )
    assert {(point.query, point.batch) for point in points} == {(1, 4)}
    assert points[0].as_request("copy") == {
        "moment": KillMoment.older,
        "query": 1,
        "batch": 4,
        "line": None,
        "after_s": None,
        "of_s": None,
        "copy_to": "copy",
        "copy_batch": 3,
    }


@pytest.mark.parametrize("moment", USUAL)
def test_only_an_older_checkpoint_needs_a_copy(moment: KillMoment) -> None:
    assert KillPoint(moment, 0, 2).as_request("copy")["copy_batch"] is None


def test_lines_are_different_ones_as_long_as_there_are_any() -> None:
    lines = ("job.py:1", *[f"job.py:{number}" for number in (2, 3, 2, 3, 4, 5)])
    calls = [FunctionCall(0, batch, 1.0, lines) for batch in range(9)]
    for seed in range(50):
        points = choose(calls, 6, [KillMoment.line], seed)
        assert {lines[point.line or 0] for point in points[:4]} == {*lines[1:]}
        assert len({*points}) == 6


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
