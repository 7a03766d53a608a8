"""`trident dead-letters`: the commands that show the tuples that failed, and put them back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trident.cli.arguments import argument, existing_log, log_named, option
from trident.cli.console import reporting

app = typer.Typer(
    help="List dead letters, show one whole, or put them back through the topology.",
    epilog="Example: `trident dead-letters list trident-log/word-count`, then `trident dead-letters replay "
    "trident-log/word-count --all`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Directory = Annotated[
    str, argument("Folder of the log, or its address; or the name of a topology.", "DIR|NAME", callback=existing_log)
]
Folder = Annotated[
    Path | None,
    option(
        "Where the dead letters are, if the topology has the setting. Default: dead_letters in the folder of the log, "
        "or in trident-log/TOPOLOGY if that is on a server.",
        "DIR",
        "--dead-letter-dir",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the stack trace of an error, and log more.")]


@app.command("list", epilog="Example: `trident dead-letters list trident-log/word-count`")
def list_command(
    directory: Directory,
    folder: Folder = None,
    every: Annotated[bool, typer.Option("--all", help="Also those that were put back.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the dead letters that wait, oldest batch first. The log is only read; its topology may be running."""
    with reporting(debug):
        from trident.cli.dead_letters import list_letters

        list_letters(log_named(directory), folder, every, as_json)


@app.command("show", epilog="Example: `trident dead-letters show trident-log/word-count 12-0`")
def show_command(
    directory: Directory,
    letter: Annotated[str, argument("As `list` shows it: 12-0.", "ID")],
    folder: Folder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show one dead letter whole: every field with its value, the error, and where it happened."""
    with reporting(debug):
        from trident.cli.dead_letters import show

        show(log_named(directory), folder, letter, as_json)


@app.command("replay", epilog="Example: `trident dead-letters replay trident-log/word-count 12-0 12-3 15`")
def replay_command(
    directory: Directory,
    letters: Annotated[list[str] | None, argument("Dead letters (12-0), or all of a batch (12).", "[ID]...")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that wait.")] = False,
    folder: Folder = None,
    debug: Debug = False,
) -> None:
    """Put dead letters back through the topology, each once, at the step that it was left out of.

    The topology does it: within a second or so if it runs, else when it is started. A letter that fails again is a dead
    letter of the batch that tried it.
    """
    if bool(letters) == every:
        raise typer.BadParameter("name dead letters or batches, or give --all")
    with reporting(debug):
        from trident.cli.dead_letters import replay

        replay(log_named(directory), folder, letters)
