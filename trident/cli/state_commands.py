"""`trident state`: moves a state to another store, layout or number of partitions; migrates its values; forgets keys."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from trident.cli.commands import StateName, TopologyOptions, argument, command, option
from trident.cli.console import problems, say
from trident.naming import counted

app = typer.Typer(
    help="Move a state to where a new declaration of its topology has it, migrate its values to a new type, or forget keys.",
    epilog="Example: `trident state move words.py:in_redis count --to words.py:in_postgres`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@command(app, "move", "`trident state move words.py:in_redis count --to words.py:in_postgres`")
def move_command(
    of: TopologyOptions,
    state: StateName,
    to: Annotated[
        str,
        option(
            "The topology as it is declared from now on: with the state in another store, layout or place.",
            "MODULE:TOPOLOGY",
        ),
    ],
) -> None:
    """Move a state of a stopped topology to the place that its new declaration gives it. Readers may go on meanwhile.

    Every row is copied as it is stored, and compared; then the log notes the new place, and the former declaration is
    refused. After Ctrl-C, an error or a crash, run the command again: it continues. Or start the topology as it was
    declared: until the log has the note, nothing has changed for it.

    Exit codes: 0 moved, 1 failed, 2 wrong usage, 130 ended by Ctrl-C.
    """
    from trident.reading import move_state

    lines = _Lines(state)
    declared, new, config = of.load_both(to)
    try:
        moved = move_state(declared, state, new, config, lines.update, called=to)
    except KeyboardInterrupt:
        say(f"{state}: interrupted; the same command goes on where it was", "yellow", problems())
        raise
    if moved.rows is None:
        say(f"{state}: is in {to} already, after batch {moved.txid}; its former place is marked")
    else:
        there = f" ({moved.rows - moved.written:,} were there already)" if moved.written < moved.rows else ""
        say(f"{state}: moved to {to} after batch {moved.txid}: {counted(moved.rows, 'row')}{there}, all compared")


@command(app, "migrate", "`trident state migrate shops.py:topology total`")
def migrate_command(of: TopologyOptions, state: StateName) -> None:
    """Convert all values of a state to its declared type, with its migrate=, while its topology is stopped.

    A topology migrates each value that it reads by itself; after this command none of a former type is left: migrate=
    can go. After Ctrl-C, an error or a crash, run the command again, or start the topology.

    Exit codes: 0 migrated, 1 failed, 2 wrong usage, 130 ended by Ctrl-C.
    """
    from trident.reading import migrate_state

    topology, config = of.load()
    done = migrate_state(topology, state, config, _Lines(state).update)
    say(f"{state}: {counted(done.written, 'value')} migrated; none of a former type is left")


@command(app, "forget", "`trident state forget users.py:topology visits ann@example.com`")
def forget_command(
    of: TopologyOptions,
    state: StateName,
    keys: Annotated[list[str], argument("Keys; one of several fields is a JSON list.", "KEY...")],
) -> None:
    """Remove keys of a stopped topology's state for good, with their changes and the dead letters that name them.

    The value and the value before it are deleted: to the topology, the keys were never written. The command prints
    where the store itself still has the bytes, and until when. After Ctrl-C, an error or a crash, run it again.

    Exit codes: 0 forgotten, 1 failed, 2 wrong usage, 130 ended by Ctrl-C.
    """
    from trident.cli.target import parse_keys
    from trident.reading import forget_keys

    topology, config = of.load()
    wanted = parse_keys(topology, state, keys)
    done = forget_keys(topology, state, wanted, config)
    named = f"{done.keys} of {counted(len(wanted), 'key')}" if done.keys < len(wanted) else counted(done.keys, "key")
    say(f"{state}: {named} forgotten, and {counted(done.letters, 'dead letter')}")
    say(f"their bytes are {done.remains}")


class _Lines:
    """Says how far a move is: a live line on a terminal, elsewhere one every few seconds."""

    def __init__(self, state: str, every_s: float = 5.0) -> None:
        self._state, self._every_s, self._console = state, every_s, problems()
        self._what, self._since, self._said = "", 0.0, time.monotonic()

    def update(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self._what:
            self._what, self._since = what, now
        is_live = self._console.is_terminal
        if not is_live and now - self._said < self._every_s:
            return
        line = f"{self._state}: {what}, {done:,} {f'of {total:,} ' if total else ''}rows{self._rate(done, total, now)}"
        self._console.print(
            f"\r{line:<79}" if is_live else line, end="\r" if is_live else "\n", markup=False, soft_wrap=True
        )
        self._said = now

    def _rate(self, done: int, total: int, now: float) -> str:
        seconds = now - self._since
        if seconds <= 0 or not done:
            return ""
        left = f", {(total - done) * seconds / done:,.0f} s left" if total else ""
        return f", {done / seconds:,.0f} rows/s{left}"
