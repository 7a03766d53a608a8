"""Prints the list of all modules, from their docstrings: `python -m tests.module_list`."""

import sys
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PACKAGES = ("trident", "states", "spouts")


def module_list() -> str:
    """Return a heading for each package, and a line for each module."""
    found = sorted((path for name in _PACKAGES for path in (ROOT / name).rglob("*.py")), key=_place)
    parts = list[str]()
    for folder, paths in groupby(found, key=lambda path: path.parent):
        package, *modules = paths
        lines = [f"- `{path.relative_to(ROOT).as_posix()}`: {_first_line(path)}" for path in modules]
        parts.append("\n".join([f"## {folder.relative_to(ROOT).as_posix()}", f"{_first_line(package)}\n", *lines, ""]))
    return "\n".join(parts)


def _place(path: Path) -> tuple[str, bool, str]:
    return path.parent.relative_to(ROOT).as_posix(), path.name != "__init__.py", path.name


def _first_line(path: Path) -> str:
    """Return the first line of a module's docstring, which opens every module; to parse them all takes long."""
    return path.read_text(encoding="utf-8").split('"""', 2)[1].partition("\n")[0] if path.stat().st_size else ""


if __name__ == "__main__":
    sys.stdout.write(module_list())
