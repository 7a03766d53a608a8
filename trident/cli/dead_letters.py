"""`trident dead-letters`: the commands that show the tuples that failed, and put them back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trident.cli.commands import AsJson, LogPlace, argument, command, flag, log_named, option
from trident.cli.console import print_json, say, show
from trident.naming import counted, cut

if TYPE_CHECKING:
    from trident.cli.letter_box import LetterBox

app = typer.Typer(
    help="List dead letters, show one whole, put them back through the topology, edited or not, or discard them.",
    epilog="Example: `trident dead-letters list trident-log/word-count`, then `trident dead-letters replay "
    "trident-log/word-count --all`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_SHORT = 60

Letters = Annotated[list[str] | None, argument("Dead letters (12-0), or all of a batch (12).", "ID")]
Every = Annotated[bool, flag("--all", "All that wait.")]


@dataclass(frozen=True)
class LogOptions:
    """The log whose dead letters a command is about.

    `folder`: Their folder, if the topology has the setting. Default: dead_letters in the folder of the log.
    """

    directory: LogPlace
    folder: Annotated[Path | None, option("", "DIR", "--dead-letter-dir")] = None

    def open(self) -> LetterBox:
        from trident.cli.letter_box import LetterBox

        return LetterBox.open(log_named(self.directory), self.folder)


@command(app, "list", "`trident dead-letters list trident-log/word-count`")
def list_command(
    of: LogOptions,
    every: Annotated[bool, flag("--all", "Also those that were put back.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the dead letters that wait, oldest batch first. The log is only read; its topology may be running."""
    box = of.open()
    letters = list(box.letters.all(box.log)) if every else box.waiting()
    if as_json:
        print_json([box.as_data(letter) for letter in letters])
    elif letters:
        facts = [(each.id, box.state_of(each), each.failure) for each in letters]
        rows = [(id_, state, one.step, cut(one.row or "", _SHORT), cut(one.cause, _SHORT)) for id_, state, one in facts]
        show(rows, "id", "state", "step", "tuple", "error")
    else:
        say(box.NONE)


@command(app, "show", "`trident dead-letters show trident-log/word-count 12-0`")
def show_command(
    of: LogOptions, letter: Annotated[str, argument("As `list` shows it: 12-0.", "ID")], as_json: AsJson = False
) -> None:
    """Show one dead letter whole: every field with its value, the error, and where it happened."""
    from trident.spout.interfaces import TransactionAttempt

    box = of.open()
    found = box.find(letter)
    if as_json:
        print_json(box.as_data(found))
        return
    say(f"dead letter {found.id}, {box.state_of(found)}")
    say(f"batch {TransactionAttempt(found.txid, found.attempt)}, step {found.failure.step!r}")
    for name, value in found.left_out.values.items():
        say(f"  {name} = {value!r}")
    say(found.failure.details.rstrip() or found.failure.cause)


@command(app, "replay", "`trident dead-letters replay trident-log/word-count 12-0 12-3 15`")
def replay_command(
    of: LogOptions,
    letters: Letters = None,
    every: Every = False,
    edited: Annotated[Path | None, option("", "FILE", "--from", exists=True)] = None,
) -> None:
    """Put dead letters back through the topology, each once, at the step at which it was left out.

    The topology does this: within a second or so if it is running, otherwise when it starts. A letter that fails again
    becomes a dead letter of the batch that tried it. Repeating the command does no harm: no letter is put back twice.

    `edited`: Those in FILE, with the values that they have there, as `export` prints them.
    """
    if [bool(letters), every, edited is not None].count(True) != 1:
        raise typer.BadParameter("name dead letters or batches, or give --all, or --from")
    box = of.open()
    if edited is None:
        box.ask(box.select(letters))
        return
    changed, back = box.read_edited(edited)
    if back:
        say(f"{counted(back, 'dead letter')} of {edited} no longer wait, and are left as they are")
    box.ask(changed, changed)


@command(app, "discard", "`trident dead-letters discard trident-log/word-count 12-0 --reason 'a test'`")
def discard_command(
    of: LogOptions,
    reason: Annotated[str, option("Why; whoever looks later sees it.", "TEXT", "--reason")],
    letters: Letters = None,
    every: Every = False,
) -> None:
    """Discard dead letters: they no longer wait, and are not put back. They stay, with the reason (`list --all`, `show`)."""
    if bool(letters) == every:
        raise typer.BadParameter("name dead letters or batches, or give --all")
    if not reason.strip():
        raise typer.BadParameter("say why", param_hint="--reason")
    box = of.open()
    box.ask(box.select(letters), reason=reason)


@command(app, "export", "`trident dead-letters export trident-log/word-count > edited.jsonl`")
def export_command(of: LogOptions, letters: Letters = None) -> None:
    """Print dead letters as lines of JSON, all that wait or the ones named: edit `tuple`, then `replay --from FILE`."""
    from trident.read.written_values import plain

    for letter in of.open().select(letters):
        facts = {"id": letter.id, "step": letter.failure.step, "error": letter.failure.cause}
        print_json({**facts, "tuple": plain(dict(letter.left_out.values))})
