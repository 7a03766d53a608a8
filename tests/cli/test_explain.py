"""`trident explain`: prints what the topology says of itself, and runs nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness.commands import COUNTS, trident, write_module

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_module(tmp_path, "counts", COUNTS)
    return tmp_path


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("option", "begin"),
    [([], "topology counts\n"), (["--dot"], 'digraph "counts" {\n'), (["--mermaid"], "flowchart LR\n")],
)
def test_a_topology_is_shown(option: list[str], begin: str, folder: Path) -> None:
    done = trident("explain", "counts:topology", *option, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(begin)
    assert "Split" in done.stdout
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["counts.py"]


def test_the_states_are_given_as_json(folder: Path) -> None:
    states = json.loads(trident("explain", "counts:topology", "--json", cwd=folder).stdout)
    assert [(state["state"], state["streams"]["lines"]["guarantee"]) for state in states] == [
        ("count", "exact"),
        ("total", "exact"),
    ]


def test_one_form_at_a_time(folder: Path) -> None:
    done = trident("explain", "counts:topology", "--dot", "--mermaid", cwd=folder)
    assert done.returncode == 2
    assert "exclude each other" in done.stderr
