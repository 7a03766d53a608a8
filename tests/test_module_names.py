"""A module is told from every other one by its name alone, in the product and among the harnesses of the tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PRODUCT = ("trident", "states", "spouts")
SPECIAL = ("__init__", "__main__", "conftest")
# A role that several packages have, each in a module of that name: those of a store, and the interfaces of operations,
# spouts and states.
ROLES = ("faults", "fence", "health", "interfaces", "layout", "map", "options", "spout", "state")


def places(folders: Iterable[Path]) -> dict[str, list[str]]:
    """Return where the modules of each name are."""
    found = defaultdict(list)
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            if path.stem not in SPECIAL:
                found[path.stem].append(str(path.relative_to(ROOT)))
    return found


def test_a_module_of_the_product_has_a_name_of_its_own() -> None:
    of_name = places(ROOT / name for name in PRODUCT)
    assert {name: found for name, found in of_name.items() if len(found) > 1 and name not in ROLES} == {}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_one_of_several_packages(role: str) -> None:
    found = [Path(place).parent for place in places(ROOT / name for name in PRODUCT)[role]]
    assert len(found) > 1
    stores = [folder.parts for folder in found if role != "interfaces"]
    assert all(parts[0] in ("states", "spouts") and len(parts) == 2 for parts in stores), found


# What is run over all stores, and over all spouts: the rows of a table, and the program that prints it.
ROLES_OF_TESTS = ("catalog", "report")


def test_a_module_of_the_tests_has_a_name_of_its_own() -> None:
    of_name = places([ROOT / "tests"])
    assert {name: found for name, found in of_name.items() if len(found) > 1 and name not in ROLES_OF_TESTS} == {}


OF_SEVERAL_PACKAGES = ("benchmarks", "cluster", "crash", "examples", "harness", "services", "stores")


def test_the_tests_of_a_package_are_in_a_folder_of_its_name() -> None:
    tests = ROOT / "tests"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    packages = {path.parent.relative_to(ROOT) for name in PRODUCT for path in (ROOT / name).rglob("*.py")}
    mirrored = {Path(*one.parts[1:]) for one in packages if one.parts[0] == "trident"} | packages
    assert {str(one) for one in folders - mirrored if one.parts[0] not in OF_SEVERAL_PACKAGES} == set()
