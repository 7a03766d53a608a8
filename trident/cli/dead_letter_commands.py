"""`trident dead-letters`: its commands, their arguments and their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trident.cli.arguments import existing_log, log_named
from trident.cli.console import reporting

__all__ = ["app"]

app = typer.Typer(
    help="List dead letters, show one whole, or put them back through the topology.",
    epilog="Example: `trident dead-letters list trident-log/word-count`, then `trident dead-letters replay "
    "trident-log/word-count --all`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Directory = Annotated[
    str,
    typer.Argument(
        metavar="DIR|NAME",
        callback=existing_log,
        help="Folder of the log, or zookeeper://HOST:PORT/PATH; or the name of a topology.",
        show_default=False,
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--dead-letter-dir",
        metavar="DIR",
        help="Where the dead letters are, if the topology has the setting. Default: dead_letters in the folder of the log, "
        "or in trident-log/TOPOLOGY if that is in ZooKeeper.",
        show_default=False,
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
    from trident.cli.dead_letter_actions import list_letters

    with reporting(debug):
        list_letters(log_named(directory), folder, every, as_json)


@app.command("show", epilog="Example: `trident dead-letters show trident-log/word-count 12-0`")
def show_command(
    directory: Directory,
    letter: Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it: 12-0.", show_default=False)],
    folder: Folder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show one dead letter whole: every field with its value, the error, and where it happened."""
    from trident.cli.dead_letter_actions import show

    with reporting(debug):
        show(log_named(directory), folder, letter, as_json)


@app.command("replay", epilog="Example: `trident dead-letters replay trident-log/word-count 12-0 12-3 15`")
def replay_command(
    directory: Directory,
    letters: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Dead letters (12-0), or all of a batch (12).", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All that wait.")] = False,
    folder: Folder = None,
    debug: Debug = False,
) -> None:
    """Put dead letters back through the topology, each once, at the step that it was left out of.

    The topology does it: within a second or so if it runs, else when it is started. A letter that fails again is a dead
    letter of the batch that tried it.
    """
    from trident.cli.dead_letter_actions import replay

    if bool(letters) == every:
        raise typer.BadParameter("name dead letters or batches, or give --all")
    with reporting(debug):
        replay(log_named(directory), folder, letters)
