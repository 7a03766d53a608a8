"""The budgets: how many lines and modules each part may have. A budget is lowered with what becomes smaller, never raised.

What is new on purpose, such as a store, stands in `NEW` with its own lines, until the budgets are written again.
"""

import ast
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPARE = 60  # lines or, divided by 20, modules that a budget may be above what is there

BUDGETS: dict[str, tuple[int, int]] = {  # lines, modules
    "trident": (68_111, 307),
    "states": (11_474, 59),
    "spouts": (9_522, 42),
    "tests": (106_635, 529),
    "examples": (744, 8),
    "docs": (7_138, 41),
}
NEW: dict[str, dict[str, tuple[int, int]]] = {
    "a cluster in a bucket": {"trident": (0, 2), "docs": (3, 0)},
    "refusals of what was lost or exchanged": {"states": (43, 0), "spouts": (11, 0), "docs": (1, 0)},
    "attempts that are dropped within a send": {"trident": (10, 0), "tests": (22, 0)},
}


@pytest.mark.quick
@pytest.mark.parametrize("part", BUDGETS)
def test_a_part_keeps_to_its_budget(part: str) -> None:
    lines, modules = _size(part)
    most_lines, most_modules = _most(part)
    advice = f"take something away; if a store, a source or an operation is new, give it a row in NEW of {Path(__file__).name}"
    assert lines <= most_lines, f"{part}/ has {lines} lines, and may have {most_lines}: {advice}"
    assert modules <= most_modules, f"{part}/ has {modules} modules, and may have {most_modules}: {advice}"


@pytest.mark.quick
@pytest.mark.parametrize("part", BUDGETS)
def test_a_budget_is_lowered_with_what_is_there(part: str) -> None:
    lines, modules = _size(part)
    most_lines, most_modules = _most(part)
    assert most_lines - lines <= SPARE, f"lower the lines of {part}/ in {Path(__file__).name} to {lines}"
    assert most_modules - modules <= SPARE // 20, f"lower the modules of {part}/ to {modules}"


@pytest.mark.quick
def test_no_budget_is_raised() -> None:
    before = _budgets_of_the_commit_before()
    assert _raised(before, BUDGETS) == []


@pytest.mark.quick
def test_a_raised_budget_is_found() -> None:
    assert _raised({"a": (10, 2), "b": (5, 1)}, {"a": (11, 2), "b": (5, 1)}) == ["a"]
    assert _raised({"a": (10, 2)}, {"a": (10, 3)}) == ["a"]
    assert _raised({"a": (10, 2)}, {}) == ["a"]
    assert _raised({"a": (10, 2)}, {"a": (9, 2), "new": (1, 1)}) == []


@pytest.mark.quick
def test_what_is_new_has_its_own_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "NEW", {"a store": {"states": (140, 4), "docs": (30, 1)}})
    assert _most("states") == (BUDGETS["states"][0] + 140, BUDGETS["states"][1] + 4)
    assert _most("spouts") == BUDGETS["spouts"]


def _raised(before: Mapping[str, tuple[int, int]], now: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return the parts that may be larger than before, and those that have no budget any more."""
    return [
        part
        for part, most in before.items()
        if part not in now or any(a > b for a, b in zip(now[part], most, strict=True))
    ]


def _budgets_of_the_commit_before() -> dict[str, tuple[int, int]]:
    """Return the budgets of the commit before the newest one; none where there is no history, as in an sdist."""
    name = Path(__file__).relative_to(ROOT).as_posix()
    shown = subprocess.run(["git", "show", f"HEAD~1:{name}"], cwd=ROOT, capture_output=True, text=True, check=False)
    if shown.returncode:
        return {}
    found = next(
        node
        for node in ast.parse(shown.stdout).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "BUDGETS"
    )
    assert found.value is not None
    return dict(ast.literal_eval(found.value))


def _most(part: str) -> tuple[int, int]:
    rows = [BUDGETS[part], *(row[part] for row in NEW.values() if part in row)]
    return sum(lines for lines, _ in rows), sum(modules for _, modules in rows)


def _size(part: str) -> tuple[int, int]:
    """Return the lines and the number of the modules of a part, or of the pages if it is the docs."""
    files = [
        path for path in (ROOT / part).rglob("*.md" if part == "docs" else "*.py") if "__pycache__" not in path.parts
    ]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files), len(files)
