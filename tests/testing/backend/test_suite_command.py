"""`python -m trident.testing`: what it prints and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.testing.backend import wrong_backends
from trident.testing.__main__ import app

pytestmark = pytest.mark.slow

GOOD, WRONG = wrong_backends.Factory(), wrong_backends.Factory(wrong_backends.TakesNoneForAbsent)
LIMITS = wrong_backends.LIMITS
HERE = "tests.testing.backend.test_suite_command"


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1"})
    return done.exit_code, done.output


def test_a_good_store_ends_with_0() -> None:
    code, text = run(f"{HERE}:GOOD", "--seconds", "0", "--seed", "5", "--limits", f"{HERE}:LIMITS", "--kind", "opaque")
    assert code == 0, text
    assert "everything that is claimed holds" in text
    assert "seed 5" in text


@pytest.mark.long
def test_a_wrong_store_ends_with_1() -> None:
    code, text = run(f"{HERE}:WRONG", "--seconds", "0")
    assert code == 1
    assert "absent          violated" in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["no_colon"], "expected MODULE:NAME"),
        (["no.such.module:x"], "No module named 'no'"),
        ([f"{HERE}:missing"], "has no attribute 'missing'"),
        ([f"{HERE}:GOOD", "--limits", f"{HERE}:GOOD"], "expected trident.testing.Limits"),
    ],
)
def test_what_cannot_be_found_is_an_error_of_usage(arguments: list[str], text: str) -> None:
    code, output = run(*arguments)
    assert code == 2
    assert text in output


@pytest.mark.long
def test_a_module_of_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_store.py").write_text("from tests.testing.backend.test_suite_command import GOOD as open_map\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run("my_own_store:open_map", "--seconds", "0")[0] == 0
