"""The script `trident`: it says which extra brings the packages of the command line, if they are missing."""

from __future__ import annotations

from importlib import import_module

from trident.errors import EnvironmentProblem
from trident.extras import needs_package


def main() -> None:
    """Run the command line."""
    try:
        with needs_package("the command `trident`", "cli"):
            import_module("typer")
            import_module("rich")
    except EnvironmentProblem as problem:
        raise SystemExit(f"error: {problem}") from problem
    from trident.cli.app import app

    app(prog_name="trident")
