"""Prints how large the product is and how it is cut: `python -m tests.house_figures`."""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PRODUCT = ("trident", "states", "spouts")
_BRANCHES = (ast.If, ast.For, ast.While, ast.IfExp, ast.ExceptHandler, ast.comprehension, ast.match_case)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MOST_BRANCHES, MOST_LINES = 12, 60
COMMENTED = ("trident/cluster", "trident/engine", "spouts/kafka")
"""Rooms whose comments say why: 3 to 5 in 100 lines."""
_IRREGULAR = "broken chosen found given held hidden kept known left made overtaken seen sent shown taken told written"
_PARTICIPLE = re.compile(f"_*(?!(?:need|feed|seed|heed)$)(?:[a-z]+ed|(?:un)?(?:{_IRREGULAR.replace(' ', '|')}))")
_ONLY_BRACKETS = re.compile(r"[\s)\]},:]*(#.*)?")


def main() -> None:
    """Print each figure on a line."""
    sources = {path: path.read_text(encoding="utf-8") for path in modules(*PRODUCT)}
    trees = {path: ast.parse(text) for path, text in sources.items()}
    lines = sum(len(text.splitlines()) for text in sources.values())
    functions = [node for tree in trees.values() for node in _functions(tree)]
    figures = {
        "product lines": lines,
        "product modules": len(sources),
        "lines of tests": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in modules("tests")),
        "lines that do something, %": round(
            100 * sum(_doing(tree, sources[path].splitlines()) for path, tree in trees.items()) / lines, 1
        ),
        "functions named by a bare participle": sum(_PARTICIPLE.fullmatch(each.name) is not None for each in functions),
        **{f"comments per 100 lines in {room}": _comments(room) for room in COMMENTED},
        "imports and __all__, % of lines": round(100 * sum(map(_lines_of_imports, trees.values())) / lines, 1),
        "protocols that are asked for at run time": sum(map(_runtime_protocols, trees.values())),
        "calls of isinstance": sum(text.count("isinstance(") for text in sources.values()),
        "calls of getattr and hasattr": sum(
            text.count("getattr(") + text.count("hasattr(") for text in sources.values()
        ),
        f"functions with more than {MOST_BRANCHES} branches": sum(
            _branches(each) > MOST_BRANCHES for each in functions
        ),
        f"functions over {MOST_LINES} lines": sum(_length(each) > MOST_LINES for each in functions),
        "modules under 60 lines, without __init__": sum(
            len(text.splitlines()) < 60 and path.name != "__init__.py" for path, text in sources.items()
        ),
        "modules over 500 lines": sum(len(text.splitlines()) > 500 for text in sources.values()),
    }
    sys.stdout.write("".join(f"{name:44}{figure:>10,}\n" for name, figure in figures.items()))
    for path, text in sources.items():
        sys.stdout.writelines(f"  {path.relative_to(ROOT)}:{each}\n" for each in too_large(text))


def too_large(source: str) -> list[str]:
    """Return the functions of a module with too many branches or lines, as `line name: branches, lines`."""
    sizes = ((node, _branches(node), _length(node)) for node in _functions(ast.parse(source)))
    return [
        f"{node.lineno} {node.name}: {branches} branches, {length} lines"
        for node, branches, length in sizes
        if branches > MOST_BRANCHES or length > MOST_LINES
    ]


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _FUNCTIONS):
            yield child
        if not isinstance(child, ast.expr):
            yield from _functions(child)


def modules(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def stores() -> list[str]:
    """Return the names of the stores, each a package in `states`."""
    return sorted(path.parent.name for path in (ROOT / "states").glob("*/__init__.py"))


def store_options() -> dict[str, Any]:
    """Return the class of options of each store that has one, by the name of its package."""
    found = ((store, vars(import_module(f"states.{store}"))) for store in stores())
    return {store: names[name] for store, names in found for name in names if name.endswith("Options")}


def parsed(module: str) -> ast.Module:
    """Return the tree of a module or package, by its dotted name."""
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def exported(tree: ast.Module) -> list[str]:
    """Return the names in the `__all__` of a module; without one, the classes and functions that it defines."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    defined = (node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return [name for name in defined if not name.startswith("_")]


def _doing(tree: ast.Module, lines: Sequence[str]) -> int:
    """Count the lines of statements, without imports, signatures, docstrings, bare declarations and closing brackets."""
    found = set[int]()
    for node in ast.walk(tree):
        match node:
            case (
                ast.Import()
                | ast.ImportFrom()
                | ast.FunctionDef()
                | ast.AsyncFunctionDef()
                | ast.ClassDef()
                | ast.Pass()
            ):
                continue
            case ast.Expr(ast.Constant()) | ast.AnnAssign(value=None):
                continue
            case ast.stmt():
                below = [each.lineno for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]
                found.update(
                    range(node.lineno, min([each for each in below if each > node.lineno], default=_end(node) + 1))
                )
    return sum(_ONLY_BRACKETS.fullmatch(lines[number - 1]) is None for number in found)


def _comments(room: str) -> float:
    """Count the comments that have a line of their own, for 100 lines of code."""
    lines = [line.strip() for path in modules(room) for line in path.read_text(encoding="utf-8").splitlines()]
    own = sum(line.startswith("#") for line in lines)
    return round(100 * own / (sum(map(bool, lines)) - own), 1)


def _lines_of_imports(tree: ast.Module) -> int:
    exports = (node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return sum(_length(node) for node in (*exports, *imports))


def _runtime_protocols(tree: ast.Module) -> int:
    return sum(
        any("runtime_checkable" in ast.unparse(each) for each in node.decorator_list)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )


def _branches(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    own: list[ast.AST] = [*function.body]
    found = 0
    while own:
        node = own.pop()
        if not isinstance(node, (*_FUNCTIONS, ast.Lambda)):
            found += isinstance(node, _BRANCHES) + (len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0)
            own += ast.iter_child_nodes(node)
    return found


def _length(node: ast.stmt) -> int:
    return _end(node) - node.lineno + 1


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


if __name__ == "__main__":
    main()
