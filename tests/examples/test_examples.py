"""The examples run as they stand, print what they say, and keep what they claim."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
BESIDE_SERVERS = {
    "kafka_words.py": (
        ["kafka", "redis"],
        ["100,000 lines in the topic", "the: [[100000]]", "cow moon: [[50000]]", "dish: [[0]]"],
    ),
    "ledger.py": (
        ["kafka"],
        [
            "200,000 entries of 500 accounts in the topic",
            *["killed after batch [0-9]+"] * 3,
            "complete: .*",
            "audit: 500 balances, sum 0, 0 differ from the topic",
        ],
    ),
    "reach.py": (
        ["redis"],
        [
            "foo.com/blog/1: [[16]]",
            "engineering.twitter.com/blog/5: [[14]]",
            "tech.backtype.com/blog/123: [[7]]",
            "unseen.com: [[0]]",
        ],
    ),
}
PRINTED = {
    "sqlite_state.py": ["([2, 1, None], 4)", "([3, 1, 1], 6)"],
    "windows.py": ["00:00 hall: 23.0", "00:01 hall: 21.5", "00:00 roof: 20.5", "00:01 roof: 18.5"],
    "bolt_words.py": ["the: 7", "and: 2", "diddle: 2", "away: 1", "cat: 1"],
    "location_db.py": ["Wien: 2", "Linz: 1", "Graz: 0", "unknown: 1"],
}


def run(name: str, folder: Path, *options: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error::UserWarning"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_is_to_print(name: str, tmp_path: Path) -> None:
    assert run(name, tmp_path) == PRINTED[name]


@pytest.mark.long
def test_the_bolts_count_the_same_on_spark(tmp_path: Path) -> None:
    assert run("bolt_words.py", tmp_path, "--spark") == PRINTED["bolt_words.py"]


@pytest.mark.long
@pytest.mark.server
@pytest.mark.timeout(300)  # on a busy machine; the servers start, and the ledger's job four times
@pytest.mark.parametrize("name", BESIDE_SERVERS)
def test_an_example_beside_servers_prints_what_it_is_to_print(name: str) -> None:
    servers, printed = BESIDE_SERVERS[name]
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.with_servers", *servers, "--", f"examples/{name}"],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(printed), done.stdout
    for line, expected in zip(lines, printed, strict=True):
        assert line == expected or re.fullmatch(expected, line), done.stdout


@pytest.mark.long
def test_a_second_run_of_the_sqlite_example_counts_nothing_twice(tmp_path: Path) -> None:
    run("sqlite_state.py", tmp_path)
    assert run("sqlite_state.py", tmp_path) == ["([3, 1, 1], 6)", "([3, 1, 1], 6)"]


def test_every_example_is_known() -> None:
    elsewhere = {"word_count.py"}  # run by the tests of the command line
    assert {path.name for path in (ROOT / "examples").glob("[!_]*.py")} - elsewhere == {*PRINTED, *BESIDE_SERVERS}
