"""What users import has docstrings; a method where it is declared: in its class, in a base, or in a protocol that fits."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from tests import house_figures
from tests.site_pages import PUBLIC, public_names

Method = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Declared:
    """The classes of some modules, by name; a name that stands twice is each of them."""

    classes: dict[str, list[ast.ClassDef]]

    @classmethod
    def at_the_top(cls, nodes: Iterable[ast.stmt]) -> Declared:
        found: defaultdict[str, list[ast.ClassDef]] = defaultdict(list)
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(node)
        return cls(dict(found))

    @cached_property
    def protocols(self) -> list[ast.ClassDef]:
        return [each for same in self.classes.values() for each in same if "Protocol" in bases(each)]

    def missing(self, names: Collection[str]) -> Iterator[str]:
        """Yield the public methods of the classes of these names that no docstring describes."""
        for node in (node for same in self.classes.values() for node in same if node.name in names):
            known = self._described(node)
            yield from (
                f"{node.name}.{name}"
                for name, method in methods(node).items()
                if not name.startswith(("_", "test_")) and name not in known and not ast.get_docstring(method)
            )

    def _described(self, node: ast.ClassDef) -> set[str]:
        lines = [each for name in bases(node) for each in self._line(name)]
        own = {name for each in (node, *lines) for name in methods(each)}
        protocols = [each for each in self.protocols if own >= {*methods(each)}]
        return {name for each in (*lines, *protocols) for name, one in methods(each).items() if ast.get_docstring(one)}

    def _line(self, name: str) -> Iterator[ast.ClassDef]:
        for node in self.classes.get(name, ()):
            yield node
            for each in bases(node):
                yield from self._line(each)


@cache
def methods(node: ast.ClassDef) -> dict[str, Method]:
    return {each.name: each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def bases(node: ast.ClassDef) -> list[str]:
    """Return the names of the bases, without modules and type arguments."""
    names = (each.value if isinstance(each, ast.Subscript) else each for each in node.bases)
    return [each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in names]


def test_what_users_import_is_described_where_it_is_declared() -> None:
    public = {name for module in PUBLIC for name in public_names(module)}
    sources = (path.read_text(encoding="utf-8") for path in house_figures.modules(*house_figures.PRODUCT))
    nodes = [node for source in sources for node in ast.parse(source).body]
    assert list(Declared.at_the_top(nodes).missing(public)) == [], "write a docstring of each"
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name in public]
    ours = (each for each in functions if "overload" not in map(ast.unparse, each.decorator_list))
    assert [each.name for each in ours if not ast.get_docstring(each)] == []


def test_a_method_that_nothing_describes_is_found() -> None:
    source = '''
class Read(Protocol):
    def read(self):
        """Read."""
    def seek(self):
        """Seek."""
class Base:
    def close(self):
        """Close."""
class Whole(Base[int]):
    def read(self): ...
    def seek(self): ...
    def close(self): ...
    def open(self): ...
class Half(lib.Base):
    def read(self): ...
'''
    assert list(Declared.at_the_top(ast.parse(source).body).missing({"Whole", "Half"})) == ["Whole.open", "Half.read"]
