"""No product code asks an object by a name what it can do, but through `trident/roles.py`.

`getattr` and `hasattr` stay where a name is data, and at what is not ours to declare. Each such place has its reason here.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("trident", "states", "spouts")
COMPUTED = "a computed name"

FIELDS = "the fields of a dataclass are checked by name"
FUNCTIONS = "functions and modules are named in messages; what is callable need not have a name"
KERNELS = "Arrow's functions are chosen by name"
NUMPY = "a scalar of numpy is recognised without an import of numpy"
SYSTEM = "not every operating system has it"
VALUES = "a value of NumPy, pandas or Spark, or a named tuple, is recognised without an import of its library"
OLDER = "a library that is older has it not"
TARGETS = "a user names an attribute of a module"
CHECKS = "the suite finds its checks and claims by name"

# (path, name that is asked for): why it is no method of a role.
ALLOWED = {
    ("trident/state/forwarding.py", COMPUTED): "a wrapper's method that a role declares is looked up in the map",
    ("trident/roles.py", COMPUTED): "an object is made one of a role by the methods and facts that it has, once",
    ("trident/roles.py", "facts"): "an object may declare its facts, and need not",
    ("trident/state/interfaces.py", "make_state"): "a user's factory need not inherit from anything",
    (
        "trident/state/kinds.py",
        "kind",
    ): "a factory or a serializer may declare its kind, and need not inherit from anything",
    ("trident/state/map_state.py", COMPUTED): "a subclass may write a method that is passed on otherwise",
    ("trident/observe/open_metrics.py", COMPUTED): "a line of the table of metrics names the figure",
    ("trident/config.py", COMPUTED): FIELDS,
    ("trident/setting_types.py", COMPUTED): FIELDS,
    ("trident/storm/storm_config.py", COMPUTED): FIELDS,
    ("trident/redaction.py", COMPUTED): FIELDS,
    ("trident/log/log_state.py", COMPUTED): FIELDS,
    ("states/postgres/options.py", COMPUTED): FIELDS,
    (
        "states/cassandra/cluster_session.py",
        COMPUTED,
    ): "the driver's constants are chosen by the names of consistency levels",
    ("trident/log/file_log.py", "fdatasync"): SYSTEM,
    ("trident/engine/runners.py", "sched_getaffinity"): SYSTEM,
    ("trident/operations/interfaces.py", "__name__"): FUNCTIONS,
    ("trident/crashtest/injected/sitecustomize.py", "__code__"): FUNCTIONS,
    ("trident/crashtest/injected/sitecustomize.py", "__name__"): FUNCTIONS,
    ("trident/testing/backend/fenced_map_contract.py", "__name__"): FUNCTIONS,
    ("trident/operations/adapters.py", COMPUTED): "the hints of an aggregator's methods are read, whichever it has",
    ("trident/naming.py", COMPUTED): "an attribute that was misspelt is looked for by its right name",
    ("trident/operations/windows.py", "counts"): "a class variable that the subclasses set; the base alone is refused",
    ("trident/targets.py", COMPUTED): TARGETS,
    ("trident/targets.py", "__file__"): TARGETS,
    ("trident/cli/doctor.py", "__version__"): "a module that no package manager knows may say its version itself",
    ("trident/extras.py", "get_data"): "a loader of Python's may read files, and need not",
    ("trident/engine/dataframe_runner.py", "toArrow"): OLDER,
    ("trident/alignment.py", "string_view"): OLDER,
    ("trident/arrow.py", COMPUTED): OLDER,
    ("trident/types.py", COMPUTED): "a row names the function of Arrow that makes its type",
    ("trident/types.py", "nanosecond"): VALUES,
    **{("trident/strict_columns.py", name): VALUES for name in ("tolist", "ndim", "dtype", "kind")},
    **{("trident/strict_columns.py", name): VALUES for name in ("__fields__", "_fields", "fields")},
    ("trident/steps/key_columns.py", COMPUTED): KERNELS,
    ("trident/steps/vector_steps.py", COMPUTED): KERNELS,
    ("trident/types.py", "dtype"): NUMPY,
    ("trident/types.py", "kind"): NUMPY,
    ("trident/types.py", "item"): NUMPY,
    ("trident/types.py", "ndim"): NUMPY,
    ("trident/testing/backend/contract.py", COMPUTED): CHECKS,
    ("trident/testing/backend/contract_sharing.py", COMPUTED): CHECKS,
    ("trident/testing/contract.py", COMPUTED): CHECKS,
    ("trident/testing/spout/source_under_test.py", COMPUTED): CHECKS,
}


@cache
def probes_of(root: Path) -> tuple[tuple[str, str, int], ...]:
    """Return path, name and line of each `getattr` and `hasattr` in the product's modules below a folder."""
    return tuple(_read(root))


def _read(root: Path) -> Iterator[tuple[str, str, int]]:
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if "attr(" in text else ():
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
                    name = node.args[1]
                    known = isinstance(name, ast.Constant)
                    yield str(path.relative_to(root)), str(name.value) if known else COMPUTED, node.lineno  # type: ignore[attr-defined]


def test_no_method_is_asked_for_by_a_name() -> None:
    found = [f"{path}:{line}: {name}" for path, name, line in probes_of(ROOT) if (path, name) not in ALLOWED]
    assert not found, "\n".join(
        ["declare it in a base class with a default, or use `has` of trident/roles.py:", *found]
    )


def test_every_place_that_is_allowed_is_there() -> None:
    there = {(path, name) for path, name, _ in probes_of(ROOT)}
    assert [place for place in ALLOWED if place not in there] == []


@pytest.mark.parametrize("text", ["hasattr(state, 'close')", "close = getattr(state, 'close', None)"])
def test_a_probe_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "states").mkdir()
    (tmp_path / "states" / "mine.py").write_text(f"def f(state):\n    {text}\n", encoding="utf-8")
    assert probes_of(tmp_path) == (("states/mine.py", "close", 2),)
