"""A public class of the product, and a module of the tests, is told from all others by its name; exported names are there."""

import importlib
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.house_figures import PRODUCT, ROOT, modules

SPECIAL = ("__init__", "__main__", "conftest")
# Storm has these names twice, in Trident and for its own spouts and bolts; users know both.
NAMES_OF_STORM = ("IRichSpout", "SpoutOutputCollector", "TopologyContext")


def places(folders: Iterable[Path]) -> dict[str, list[str]]:
    """Return where the modules of each name are."""
    found = defaultdict(list)
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            if path.stem not in SPECIAL:
                found[path.stem].append(str(path.relative_to(ROOT)))
    return found


def test_a_public_class_of_the_product_has_a_name_of_its_own() -> None:
    found = defaultdict(list)
    for name in PRODUCT:
        for path in sorted((ROOT / name).rglob("*.py")):
            for name_of_class in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE):
                found[name_of_class].append(str(path.relative_to(ROOT)))
    twice = {name: there for name, there in found.items() if len(there) > 1}
    assert sorted(twice) == list(NAMES_OF_STORM), twice


# What is run over all stores, and over all spouts: the rows of a table, and the program that prints it.
ROLES_OF_TESTS = ("catalog", "report")


def test_a_module_of_the_tests_has_a_name_of_its_own() -> None:
    of_name = places([ROOT / "tests"])
    assert {name: found for name, found in of_name.items() if len(found) > 1 and name not in ROLES_OF_TESTS} == {}


OF_SEVERAL_PACKAGES = ("benchmarks", "cluster", "crash", "examples", "harness", "proof", "services", "stores")


def test_the_tests_of_a_package_are_in_a_folder_of_its_name() -> None:
    tests = ROOT / "tests"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    packages = {path.parent.relative_to(ROOT) for name in PRODUCT for path in (ROOT / name).rglob("*.py")}
    mirrored = {Path(*one.parts[1:]) for one in packages if one.parts[0] == "trident"} | packages
    assert {str(one) for one in folders - mirrored if one.parts[0] not in OF_SEVERAL_PACKAGES} == set()


def test_every_exported_name_is_there() -> None:
    """That `__all__` is sorted and complete, ruff finds (F401, RUF022, RUF068)."""
    offering = [path for path in modules(*PRODUCT) if "__all__" in path.read_text(encoding="utf-8")]
    assert ROOT / "trident" / "arrow.py" in offering
    for path in offering:
        parts = path.relative_to(ROOT).with_suffix("").parts
        loaded = importlib.import_module(".".join(parts).removesuffix(".__init__"))
        missing = [name for name in getattr(loaded, "__all__", []) if not hasattr(loaded, name)]
        assert missing == [], f"{loaded.__name__}.__all__ names what it does not have"
