"""The list of mutants is true to the code, and what is said of a mutant is what its tests say."""

import re
from dataclasses import replace

import pytest

from tests.proof.mutant import ROOT, Mutant, StaleMutantError
from tests.proof.mutants import MUTANTS, Tree, Verdict, table

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
RULE = BY_NAME["opaque: a replay builds on what the failed attempt wrote"]
FENCE = BY_NAME["sentinel: the fence is the wrong way round"]
PAGE = ROOT / "tests" / "proof" / "mutants.md"
MAPS, SENTINEL = "tests/state/test_maps.py", "tests/state/test_sentinel.py"


def test_every_mutant_is_of_code_that_is_there_once_and_of_tests_that_are_there() -> None:
    wrong = []
    for mutant in MUTANTS:
        compile(mutant.seeded((ROOT / mutant.file).read_text(encoding="utf-8")), mutant.file, "exec")
        wrong += [f"{mutant.name}: {test}" for test in mutant.tests or ("no tests",) if not is_there(test)]
    assert wrong == []


def is_there(test: str) -> bool:
    file, _, name = test.partition("::")
    path, name = ROOT / file, name.partition("::")[0]  # a class may inherit its tests, and be one that a table names
    if not name or not path.is_file():
        return path.is_file()
    return re.search(rf'^(class|def) {name}\b|"{name}": ', path.read_text("utf-8"), re.M) is not None


def test_the_page_has_a_row_for_each_mutant() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0][2:] for row in rows[1:]] == [mutant.name for mutant in MUTANTS]


def test_every_mutant_has_a_name_and_a_bug_of_its_own() -> None:
    assert len(BY_NAME) == len(MUTANTS)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize(("source", "times"), [("a = 2", 0), ("a = 1\nb = a = 1", 2)])
def test_a_snippet_that_is_not_there_once_is_named(source: str, times: int) -> None:
    with pytest.raises(StaleMutantError, match=f"mutant 'wrong': x.py has its snippet {times} times, not once:\na = 1"):
        Mutant("wrong", "x.py", "a = 1", "a = 3", ()).seeded(source)


def test_the_table_has_the_test_without_its_case_and_names_survivors() -> None:
    verdicts = [Verdict(RULE, f"{MAPS}::TestX::test_y[case 1]", 1.4), Verdict(FENCE, None, 2.0)]
    lines = table(verdicts).splitlines()
    assert "2 mutants, 1 caught, the slowest after 1 seconds." in lines
    assert lines[-2:] == [
        f"| {RULE.name} | `trident/state/values.py` | `test_maps.py`: `test_y` | 1 |",
        f"| {FENCE.name} | `trident/state/sentinel.py` | **not caught** | 2 |",
    ]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(tmp_path_factory.mktemp("tree"))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "tests", "caught_by"),
    [
        (RULE, "test_maps.py::test_a_replay_counts_once_where_the_kind_promises_it", "[OpaqueMap]"),
        (FENCE, "test_sentinel.py::test_legal", "[a failed attempt of this batch]"),
    ],
)
def test_a_mutant_is_caught_and_leaves_nothing_behind(tree: Tree, mutant: Mutant, tests: str, caught_by: str) -> None:
    named = replace(mutant, tests=(f"tests/state/{tests}",))
    verdict = tree.verdict(named, seed=1)
    assert (verdict.mutant, verdict.test) == (named, f"tests/state/{tests}{caught_by}")
    assert verdict.seconds > 0
    assert (tree.folder / mutant.file).read_bytes() == (ROOT / mutant.file).read_bytes()


@pytest.mark.long
@pytest.mark.slow
def test_a_mutant_that_no_test_looks_at_survives(tree: Tree) -> None:
    assert tree.verdict(replace(RULE, tests=(f"{SENTINEL}::test_legal",)), seed=1).test is None


@pytest.mark.long
@pytest.mark.slow
def test_tests_that_do_not_run_have_not_caught_it(tree: Tree) -> None:
    verdict = tree.verdict(replace(RULE, tests=(f"{MAPS}::test_that_is_not_there",)), seed=1)
    assert verdict.test is None
    assert verdict.said.startswith("pytest ended with 4:")
