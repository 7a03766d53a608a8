"""Writes the tables of options in docs/command-line.md from the help of the commands: `python -m tests.command_list`."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import Any

from typer.main import get_command

from trident.cli.app import app

__all__ = ["PAGE", "with_tables"]

PAGE = Path(__file__).parents[1] / "docs" / "command-line.md"
_HEAD = ["| option | meaning |", "|---|---|"]
_EVERYWHERE = {"--help", "--debug"}  # the page says so at its beginning


def with_tables(page: str) -> str:
    """Return the page with the table of options of each command as its help has them."""
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    head, *sections = re.split(r"^## trident ", page, flags=re.MULTILINE)
    written = [_with_table(section, commands[section.partition("\n")[0]]) for section in sections]
    return "## trident ".join([head, *written])


def _with_table(section: str, command: Any) -> str:
    before, _, after = section.partition("\n".join(_HEAD) + "\n")
    rest = re.sub(r"\A(\|.*\n)*", "", after)
    return before + "\n".join([*_HEAD, *_options(command)]) + "\n" + rest


def _options(command: Any) -> list[str]:
    """One row for each option; of a command that has commands of its own, of all of theirs."""
    below: dict[str, Any] = getattr(command, "commands", {"": command})
    found: dict[str, str] = {}
    for each in below.values():
        for option in each.params:
            if option.param_type_name == "option" and not _EVERYWHERE.intersection(option.opts):
                found.setdefault(option.opts[0], _row(option))
    return list(found.values())


def _row(option: Any) -> str:
    kind = getattr(option.type_descriptor, "annotation", None)
    choices = [each.value for each in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
    value = option.metavar or ("<" + "\\|".join(choices) + ">" if choices else "")
    first = option.opts[0] if option.is_flag or not value else f"{option.opts[0]} {value}"
    named = ", ".join(f"`{name}`" for name in (first, *option.opts[1:]))
    return f"| {named} | {' '.join(f'{option.help}{_default(option)}'.split())} |"


def _default(option: Any) -> str:
    if option.is_flag or not option.show_default:
        return ""
    default = option.show_default if isinstance(option.show_default, str) else option.default
    return "" if default in (None, (), []) else f" Default: {getattr(default, 'value', default)}."


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
