"""What each package says it offers (`__all__`) is there, sorted, and all there is."""

from __future__ import annotations

import ast
import importlib

from tests.house_figures import ROOT, exported, parsed

PACKAGES = sorted(
    ".".join(path.parent.relative_to(ROOT).parts)
    for top in ("trident", "states", "spouts")
    for path in (ROOT / top).rglob("__init__.py")
    if path.stat().st_size
)
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for top in ("trident", "states", "spouts")
    for path in (ROOT / top).rglob("[!_]*.py")
    if "__all__" in path.read_text(encoding="utf-8")
)


def bound_names(tree: ast.Module) -> set[str]:
    """Return the public names that the top of a module binds by `from x import`, assignment, def or class.

    A module with a `__getattr__` imports for the type checker what that gives.
    """
    names: set[str] = set()
    lazily = any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in ast.walk(tree))
    typed = [each for node in tree.body if lazily and isinstance(node, ast.If) for each in node.body]
    for node in [*tree.body, *typed]:
        if isinstance(node, ast.ImportFrom) and node.module not in (
            "__future__",
            "typing",
            "collections.abc",
            "importlib",
        ):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def isort_key(name: str) -> tuple[int, str]:
    """Constants first, then classes, then functions: the order that the linter keeps."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_all_of_a_package_is_complete() -> None:
    for package in PACKAGES:
        tree = parsed(package)
        assert set(exported(tree)) - {"__version__"} == bound_names(tree), f"{package}.__all__ and its imports differ"


def test_all_is_sorted_and_without_repetition() -> None:
    for module in {*PACKAGES, *MODULES}:
        names = exported(parsed(module))
        assert names == sorted(set(names), key=isort_key), f"{module}.__all__ is not sorted (`make format` sorts it)"


def test_every_exported_name_is_there() -> None:
    for module in {*PACKAGES, *MODULES}:
        loaded = importlib.import_module(module)
        missing = [name for name in getattr(loaded, "__all__", []) if not hasattr(loaded, name)]
        assert missing == [], f"{module}.__all__ names what {module} does not have"


def test_there_is_something_to_look_at() -> None:
    assert "trident.arrow" in MODULES


def test_names_are_ordered_by_kind() -> None:
    assert sorted(["open", "Zone", "Map", "LIMIT"], key=isort_key) == ["LIMIT", "Map", "Zone", "open"]


def test_an_incomplete_list_is_found() -> None:
    tree = ast.parse("from a import b, _c\nfrom typing import Any\nfrom d import e as f\n__all__ = ['b']\nG = 1\n")
    assert bound_names(tree) == {"b", "f", "G"}
    assert exported(tree) == ["b"]
