"""Writes the tables of options in docs/command-line.md from the help of the commands: `python -m tests.command_list`."""

import re
from enum import Enum
from pathlib import Path
from typing import Any, get_args

from typer.main import get_command

from trident.cli.app import app

PAGE = Path(__file__).parents[1] / "docs" / "command-line.md"
_HEAD = ["| option | meaning |", "|---|---|"]
_EVERYWHERE = {"--help", "--debug"}  # the page says so at its beginning
_OF_SEVERAL = 5  # an option of so many commands is in the first table, and only named in theirs


def with_tables(page: str) -> str:
    """Return the page with the options of each command as its help has them: those of many commands in the first table.

    A section is of a command, or of several, as in `## trident list, show`.
    """
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    rows = [
        row for command in commands.values() for row in {row: None for each in _below(command) for row in _rows(each)}
    ]
    often = list(dict.fromkeys(row for row in rows if rows.count(row) >= _OF_SEVERAL))
    head, *sections = re.split(r"^## trident ", page, flags=re.MULTILINE)
    written = [_with_table(head, often)]
    for section in sections:
        names = section.partition("\n")[0].split(", ")
        named = [(name, command) for name in names for command in _below(commands[name])]
        written.append(_with_table(section, _options([(each.name or name, each) for name, each in named], often)))
    return "## trident ".join(written)


def _with_table(section: str, rows: list[str]) -> str:
    before, _, after = section.partition("\n".join(_HEAD) + "\n")
    rest = re.sub(r"\A(\|.*\n)*", "", after)
    return before + "\n".join([*_HEAD, *rows]) + "\n" + rest


def _below(command: Any) -> list[Any]:
    """The commands of a command that has some of its own, else itself."""
    return list(getattr(command, "commands", {"": command}).values())


def _options(commands: list[tuple[str, Any]], often: list[str]) -> list[str]:
    """One row for each option, with the commands that have it unless all have; those of many commands in the last row."""
    users: dict[str, list[str]] = {}
    for name, command in commands:
        for row in _rows(command):
            users.setdefault(row, []).append(f"`{name}`")
    shown = {row: "" if len(names) == len(commands) else f" ({', '.join(names)})" for row, names in users.items()}
    own = [f"{row[:-2]}{by} |" for row, by in shown.items() if row not in often]
    named = [f"{row.split(' | ')[0].removeprefix('| ')}{by}" for row, by in shown.items() if row in often]
    return [*own, *([f"| {', '.join(named)} | [of several commands](#options-of-several-commands) |"] if named else [])]


def _rows(command: Any) -> list[str]:
    options = (each for each in command.params if each.param_type_name == "option")
    return [_row(each) for each in options if not _EVERYWHERE.intersection(each.opts)]


def _row(option: Any) -> str:
    kind = getattr(option.type_descriptor, "annotation", None)
    choices = get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        choices = tuple(each.value for each in kind)
    value = option.metavar or ("<" + "\\|".join(choices) + ">" if choices else "")
    first = option.opts[0] if option.is_flag or not value else f"{option.opts[0]} {value}"
    named = ", ".join(f"`{name}`" for name in (first, *option.opts[1:]))
    variable = f" Variable: `{option.envvar}`." if option.envvar else ""
    return f"| {named} | {' '.join(f'{option.help}{variable}{_default(option)}'.split())} |"


def _default(option: Any) -> str:
    if option.is_flag or not option.show_default:
        return ""
    default = option.show_default if isinstance(option.show_default, str) else option.default
    return "" if default in (None, (), []) else f" Default: {getattr(default, 'value', default)}."


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
