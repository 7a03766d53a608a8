"""Writes docs/modules.md, the list of all modules, from their docstrings: `python -m tests.module_list`."""

from __future__ import annotations

import ast
from itertools import groupby
from pathlib import Path

__all__ = ["PAGE", "module_list"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "modules.md"
_PACKAGES = ("trident", "states", "spouts")
_HEAD = """# Modules
What each module is for, in the words of its first line. `make docs` writes this page; [architecture](architecture.md) says how
they work together, and `tests/test_layers.py` who may import whom.
"""


def module_list() -> str:
    """Return the page."""
    found = sorted((path for name in _PACKAGES for path in (ROOT / name).rglob("*.py")), key=_place)
    parts = [_HEAD]
    for folder, paths in groupby(found, key=lambda path: path.parent):
        package, *modules = paths
        lines = [f"- `{path.relative_to(ROOT).as_posix()}`: {_first_line(path)}" for path in modules]
        parts.append("\n".join([f"## {folder.relative_to(ROOT).as_posix()}", f"{_first_line(package)}\n", *lines, ""]))
    return "\n".join(parts)


def _place(path: Path) -> tuple[str, bool, str]:
    return path.parent.relative_to(ROOT).as_posix(), path.name != "__init__.py", path.name


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


if __name__ == "__main__":
    PAGE.write_text(module_list(), encoding="utf-8")
