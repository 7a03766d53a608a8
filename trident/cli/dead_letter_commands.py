"""`trident dead-letters`: the commands that show the tuples that failed, and put them back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trident.cli.arguments import argument, existing_log, log_named, option
from trident.cli.console import reporting

app = typer.Typer(
    help="List dead letters, show one whole, put them back through the topology, edited or not, or discard them.",
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
        "Their folder, if the topology has the setting. Default: dead_letters in the folder of the log.",
        "DIR",
        "--dead-letter-dir",
    ),
]
Letters = Annotated[list[str] | None, argument("Dead letters (12-0), or all of a batch (12).", "[ID]...")]
Every = Annotated[bool, typer.Option("--all", help="All that wait.")]
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
        from trident.cli.dead_letters import show_letter

        show_letter(log_named(directory), folder, letter, as_json)


@app.command("replay", epilog="Example: `trident dead-letters replay trident-log/word-count 12-0 12-3 15`")
def replay_command(
    directory: Directory,
    letters: Letters = None,
    every: Every = False,
    edited: Annotated[
        Path | None,
        option(
            "Those in FILE, with the values that they have there, as `export` prints them.",
            "FILE",
            "--from",
            exists=True,
        ),
    ] = None,
    folder: Folder = None,
    debug: Debug = False,
) -> None:
    """Put dead letters back through the topology, each once, at the step at which it was left out.

    The topology does this: within a second or so if it is running, otherwise when it starts. A letter that fails again
    becomes a dead letter of the batch that tried it. Repeating the command does no harm: no letter is put back twice.
    """
    if [bool(letters), every, edited is not None].count(True) != 1:
        raise typer.BadParameter("name dead letters or batches, or give --all, or --from")
    with reporting(debug):
        from trident.cli.dead_letters import replay

        replay(log_named(directory), folder, letters or None, edited)


@app.command("discard", epilog="Example: `trident dead-letters discard trident-log/word-count 12-0 --reason 'a test'`")
def discard_command(
    directory: Directory,
    reason: Annotated[str, option("Why; whoever looks later sees it.", "TEXT", "--reason")],
    letters: Letters = None,
    every: Every = False,
    folder: Folder = None,
    debug: Debug = False,
) -> None:
    """Discard dead letters: they no longer wait, and are not put back. They stay, with the reason (`list --all`, `show`)."""
    if bool(letters) == every:
        raise typer.BadParameter("name dead letters or batches, or give --all")
    if not reason.strip():
        raise typer.BadParameter("say why", param_hint="--reason")
    with reporting(debug):
        from trident.cli.dead_letters import discard

        discard(log_named(directory), folder, letters or None, reason)


@app.command("export", epilog="Example: `trident dead-letters export trident-log/word-count > edited.jsonl`")
def export_command(directory: Directory, letters: Letters = None, folder: Folder = None, debug: Debug = False) -> None:
    """Print dead letters as lines of JSON, all that wait or the ones named: edit `tuple`, then `replay --from FILE`."""
    with reporting(debug):
        from trident.cli.dead_letters import export

        export(log_named(directory), folder, letters or None)
