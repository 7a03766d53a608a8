"""Each promise of docs/guarantees.md, and each row of `make proof`, names the tests that prove it: tests/promises.toml.

A promise is a sentence of a paragraph or of a list, or a row of a table. Code, headings, heads of tables, what ends with
a colon and the few sentences that the file calls introductions are none.
"""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TABLE: dict[str, Any] = tomllib.loads((ROOT / "tests" / "promises.toml").read_text(encoding="utf-8"))
ENTRIES: dict[tuple[str, str], list[str]] = {
    (section, quote): tests
    for section, entries in TABLE.items()
    if isinstance(entries, dict)
    for quote, tests in entries.items()
}
PROOF = "make proof"
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z*`\[])")
NEVER_RUN = re.compile(r"\bmark\.(skip|xfail|soak)\b")
NOT_IN_MAKE_TEST = re.compile(r"\bmark\.long\b|\bmark\.sample\(0\)")


def promises_of(page: str) -> list[tuple[str, str]]:
    """Return the promises of a page, each with the heading of its section; "" is what comes before the first one."""
    page = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"^\|.*\n\|[-|]+\|\n", "\n", page, flags=re.MULTILINE)  # the heads of tables
    promises = []
    for section in re.split(r"^##+ ", re.sub("^# .*", "## ", page), flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        for block in re.split(r"\n\s*\n|\n(?=[|-])", body):
            text = " ".join(block.split())
            sentences = [text] if text.startswith("|") else SENTENCE_END.split(text)
            promises += [(heading, said) for said in sentences if said and not said.endswith(":")]
    return promises


SENTENCES = promises_of((ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8"))
PROMISES = [each for each in SENTENCES if not any(quote in each[1] for quote in TABLE["introductions"])]


@cache
def blocks_of(path: str) -> list[str]:
    """Return what is between two empty lines, as functions are: to parse one is less work than to parse the file."""
    return (ROOT / path).read_text(encoding="utf-8").split("\n\n\n") if (ROOT / path).is_file() else []


@cache
def marks(test: str) -> str | None:
    """Return the marks of a test and of its file, as they are written; None if there is no such test."""
    path, _, name = test.partition("::")
    of_all = re.search(r"^pytestmark = (\[[^]]*\]|.*)", "\n".join(blocks_of(path)), re.MULTILINE)
    for block in blocks_of(path):
        if f"def {name}(" in block:
            for node in ast.parse(block).body:
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    own = [ast.unparse(each) for each in node.decorator_list]
                    return " ".join([of_all[0] if of_all else "", *(each for each in own if "parametrize" not in each)])
    return None


def test_every_promise_has_an_entry() -> None:
    without = [
        f"{section!r}: {said}"
        for section, said in PROMISES
        if not any(section == of and quote in said for of, quote in ENTRIES)
    ]
    assert without == [], "\n".join(["name the tests that prove it in tests/promises.toml:", *without])


def test_every_quote_is_in_one_promise() -> None:
    found = {
        (section, quote): sum(section == of and quote in said for of, said in PROMISES)
        for section, quote in ENTRIES
        if section != PROOF
    }
    assert {entry: times for entry, times in found.items() if times != 1} == {}
    assert len(SENTENCES) - len(PROMISES) == len(TABLE["introductions"])


def test_every_row_of_the_proof_has_an_entry() -> None:
    rows = re.findall(r'\bRow\("(P\d+)"', (ROOT / "tests" / "proof" / "proof_rows.py").read_text(encoding="utf-8"))
    assert rows
    assert [quote for section, quote in ENTRIES if section == PROOF] == rows


def test_every_test_that_is_named_is_there_and_run() -> None:
    named = {test: marks(test) for tests in ENTRIES.values() for test in tests}
    assert [test for test, found in named.items() if found is None or NEVER_RUN.search(found)] == []


def test_every_promise_is_proved_in_make_test() -> None:
    """Not only in `make full`. A promise without any test is a gap that has a name; a gap that is closed has none."""
    without = [
        quote
        for (section, quote), tests in ENTRIES.items()
        if all(NOT_IN_MAKE_TEST.search(marks(test) or "") for test in tests) and (section != PROOF or not tests)
    ]
    assert without == TABLE["gaps"]


def test_there_are_not_fewer_entries_than_there_were() -> None:
    assert len(ENTRIES) >= TABLE["least"]


def test_a_promise_is_a_sentence_or_a_row() -> None:
    page = "# Guarantees\nOne. Two\nmore `a. b`.\n\n```\nCode.\n```\n## S\n| a | b |\n|---|---|\n| x. Y | z |\n\n- C:\n- D.\n"
    assert promises_of(page) == [("", "One."), ("", "Two more `a. b`."), ("S", "| x. Y | z |"), ("S", "- D.")]


def test_the_marks_of_a_test_are_found() -> None:
    assert (
        marks("tests/crash/test_surviving_driver.py::test_killed_executors_cost_no_tuple_and_double_none") is not None
    )
    assert "mark.long" in str(
        marks("tests/crash/test_crash_matrix.py::test_a_driver_killed_by_the_clock_loses_nothing")
    )
    assert "mark.slow" in str(
        marks("tests/crash/test_crash_matrix.py::test_a_state_without_attempts_is_exact_where_replays_are_identical")
    )
    assert marks("tests/crash/test_crash_matrix.py::test_that_is_not_there") is None
