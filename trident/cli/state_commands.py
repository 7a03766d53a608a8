"""Commands about states: keys read; batches run again to prove totals, or try new code; states moved, migrated, forgotten."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trident.cli.commands import (
    AsJson,
    StateName,
    SubmittedName,
    TopologyOptions,
    Wide,
    argument,
    command,
    flag,
    option,
)
from trident.cli.console import LiveLines, cell, print_json, print_line, problems, results, say, show, wrong_use
from trident.naming import counted
from trident.servers.log_addresses import is_log_address
from trident.servers.plain_json import plain

if TYPE_CHECKING:
    from trident.config import Config
    from trident.plan.meaning import Meaning, TopologyChanges
    from trident.replay.verifying import ValueOrigin, Verified
    from trident.topology import TridentTopology

WRONG = 4  # the exit code if keys are wrong
_SHOWN = 20  # wrong keys of a state


app = typer.Typer()
state_app = typer.Typer(
    help="Move a state to where a new declaration of its topology has it, migrate its values to a new type, or forget keys.",
    epilog="Example: `trident state move words.py:in_redis count --to words.py:in_postgres`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@command(app, "get", "`trident get examples/word_count.py:topology count the and`, or `… count --top 10`")
def get_command(
    of: TopologyOptions,
    state: StateName,
    keys: Annotated[list[str] | None, argument("", "KEY")] = None,
    all_keys: Annotated[bool, flag("--all", "List all keys.")] = False,
    prefix: Annotated[str | None, option("", "TEXT")] = None,
    limit: Annotated[int | None, option("List N keys at most, in no order.", "N", min=1)] = None,
    top: Annotated[int | None, option("List the N keys with the greatest values, these first.", "N", min=1)] = None,
    by: Annotated[str | None, option("", "FIELD")] = None,
    as_json: AsJson = False,
) -> None:
    """Read or list keys of a state, whether or not its topology is running, without Spark; nothing is written.

    All keys are read as of the same committed batch (a long listing from a server, page by page). Values of states that
    are not opaque come from the latest write. If the store does not belong to the log (moved away, an older copy,
    another topology's, or without its last writes), the command ends with an error that says so.

    `keys`: Keys to read. Of a key of several fields: its first one, or a JSON list of some or all of them. None for a state
    that is a single value.
    `prefix`: List the keys whose first field begins with TEXT, or with a JSON list those with these first fields.
    `by`: With --top: of several aggregates in one value, the one to order by.
    """
    from trident.cli.get import KeyListing, read

    if all_keys + (limit is not None) + (top is not None) > 1:
        raise typer.BadParameter(
            "--all lists all keys, --limit some, --top the ones with the greatest values; give only one of them"
        )
    if by is not None and top is None:
        raise typer.BadParameter("is for --top", param_hint="--by")
    is_listing = all_keys or any(given is not None for given in (prefix, limit, top))
    answer = read(*of.load(), state, keys or [], KeyListing(prefix, limit, top, by) if is_listing else None)
    if as_json:
        print_json(answer.plain())
    else:
        answer.show(results())
        more = f"; there are more than these {len(answer.values)} keys" if answer.more else ""
        say(f"{answer.topology}, state {state}, after batch {answer.txid}{more}")


@command(app, "verify", "`trident verify words.py:topology`, or `… count --share 0.1`, or `… count --key the`")
def verify_command(
    of: TopologyOptions,
    state: Annotated[str | None, argument("", "STATE")] = None,
    share: Annotated[float, typer.Option(metavar="PART")] = 1.0,
    keys: Annotated[list[str] | None, option("", "KEY", "--key", "-k")] = None,
    as_json: AsJson = False,
) -> int:
    """Recompute states from their sources, with the history of the log, and compare them with the stores.

    Every batch is processed again in this process, with all states in memory; nothing is written anywhere, and the topology may
    be running. It needs the history since the first batch (`history=`), and sources that still have the same data.

    Exit codes: 0 all keys are equal, 1 failed, 2 wrong usage, 4 keys are wrong, 130 ended by Ctrl-C.

    `state`: The name of the state. Default: all.
    `share`: Compare this part of the keys, the same ones each time.
    `keys`: Compare this key; one of several fields is a JSON list. Repeatable.
    """
    from trident.cli.target import parse_keys
    from trident.reading import verify_state

    if not 0 < share <= 1:
        raise typer.BadParameter(f"{share:g}: more than 0, and at most 1", param_hint="--share")
    if keys and state is None:
        raise typer.BadParameter("name the state that the keys belong to", param_hint="--key")
    topology, config = of.load()
    wanted = [] if state is None else parse_keys(topology, state, keys or [])
    states = [] if state is None else [state]
    with LiveLines(problems(), topology.name) as lines:

        def progress(txid: int) -> None:
            if lines.is_due():
                lines.tell(f"batch {txid:,} processed again")

        done = verify_state(topology, *states, keys=wanted, share=share, conf=config, progress=progress)
    for each in done:
        _print_verified(each, as_json)
    return WRONG if any(each.wrong for each in done) else 0


@command(app, "why", "`trident why words.py:topology count the --last 5`")
def why_command(
    of: TopologyOptions,
    state: StateName,
    key: Annotated[str | None, argument("", "KEY")] = None,
    last: Annotated[int | None, option("The last N batches that wrote it.", "N", min=1)] = None,
    rows: Annotated[int, option("Print up to N rows of each batch, as they reached the state.", "N", min=0)] = 0,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Show which batches, positions of sources and rows a value comes from: a line for each batch that wrote it.

    Every batch is processed again in this process, as by `trident verify`; nothing is written anywhere.

    `key`: The key; one of several fields is a JSON list. None for a state that is a single value.
    """
    from trident.cli.target import parse_keys
    from trident.reading import why

    topology, config = of.load()
    wanted = None if key is None else parse_keys(topology, state, [key])[0]
    origins = why(topology, state, wanted, last, rows, config)
    for origin in origins:
        _print_origin(origin, as_json, wide)
    if not origins:
        say(f"{state}: no batch has written {'it' if key is None else key}", console=problems())


@command(app, "rehearse", "`trident rehearse words.py:topology --to words_new.py:topology --last 50`")
def rehearse_command(
    of: TopologyOptions,
    to: Annotated[str, option("The topology as its new code declares it.", "MODULE:TOPOLOGY")],
    last: Annotated[int, option("Run the last N batches, as far as they are kept.", "N", min=1)] = 100,
    as_json: AsJson = False,
) -> int:
    """Show which totals new code would change, before it runs: a dry run of the last batches with the former and the new code.

    Both start from what the stores have now, as if these batches came again. Nothing is written anywhere. For a
    topology on a cluster, `trident upgrade --rehearse` takes the former code from there.

    Exit codes: 0 no total would change, 1 failed, 2 wrong usage, 4 totals would change, or the new code would be refused, 130
    ended by Ctrl-C.
    """
    return rehearse(*of.load_both(to), last, as_json)


@command(app, "diff", "`trident diff trident-log/words words_new.py:topology`")
def diff_command(
    old: Annotated[str, argument("", "OLD")],
    new: Annotated[str, argument("The topology as its new code declares it.", "MODULE:TOPOLOGY")],
    name: SubmittedName = None,
    as_json: AsJson = False,
) -> int:
    """Show what new code changes, and what becomes of the totals, before it runs; no batch is run, and nothing is written.

    `trident rehearse` also shows which totals would differ.

    Exit codes: 0 the totals go on, 1 failed, 2 wrong usage, 4 the new code would be refused, 130 ended by Ctrl-C.

    `old`: What runs: a declaration, or the folder or address of a log that it has written.
    """
    from trident.cli.log import opened_log
    from trident.cli.target import load_both, load_topology
    from trident.errors import LogError
    from trident.plan.meaning import Meaning, meaning_of
    from trident.read.open_partitions import refused_by_stores

    with ExitStack() as opened:
        reader = None
        if is_log_address(old) or Path(old).is_dir():
            declared = load_topology(new, name)
            with wrong_use(LogError):
                reader = opened.enter_context(opened_log(old))
            called, former = reader.refresh().topology, Meaning.of_log(reader.refresh().declared)
        else:
            before, declared = load_both(old, new, name)
            called, former = before.name, meaning_of(before.graph())
        compared = _compare(called, former, declared)
        if called == declared.name:
            more = refused_by_stores(declared.graph(), declared.config, compared, reader)
            compared = replace(compared, refused=(*compared.refused, *more))
    if as_json:
        refused = [
            {"text": text, "remedy": remedy.replace("{name}", declared.name)} for text, remedy in compared.refused
        ]
        shown = {"taken": compared.taken, "refused": refused}
        print_json({**shown, "added": compared.added, "dropped": compared.dropped})
    else:
        _print_changes(compared, declared.name)
    return WRONG if compared.refused else 0


def _compare(called: str, former: Meaning, declared: TridentTopology) -> TopologyChanges:
    from trident.plan.evolution import RefusedChange
    from trident.plan.meaning import compare, meaning_of

    compared, name = compare(former, meaning_of(declared.graph())), declared.name
    if name == called:
        return compared
    text = f"topology {called!r}: its name is {name!r} now, by which there is neither its log nor its states"
    remedy = f'declare it as TridentTopology("{called}"), or say --name {called} if it was submitted under that name'
    return replace(compared, refused=(RefusedChange(text, remedy), *compared.refused))


def _print_changes(compared: TopologyChanges, topology: str) -> None:
    for text, remedy in compared.refused:
        say(f"refused: {text}", "red")
        say(f"  To do: {remedy.replace('{name}', topology)}")
    for change in compared.taken:
        say(f"goes on: {change}")
    for name in compared.added:
        say(f"new: {name} begins with the next batch")
    for name in compared.dropped:
        say(f"gone: {name} stays as it is, and gets no further batch", "yellow")
    if not (compared.refused or compared.taken or compared.added or compared.dropped):
        say("the totals go on: no state or stream is declared differently")


def rehearse(former: TridentTopology, new: TridentTopology, config: Config, last: int, as_json: bool) -> int:
    """Say what new code would change; returns the exit code, which tells whether it would, or would be refused."""
    from trident.plan.meaning import meaning_of
    from trident.reading import rehearse_upgrade

    compared = _compare(former.name, meaning_of(former.graph()), new)
    if not as_json:
        _print_changes(compared, new.name)
    done = rehearse_upgrade(former, new, last, config)
    for each in done:
        if as_json:
            print_json({**vars(each), "changed": [row._asdict() for row in each.changed]})
        elif each.refused:
            say(f"{each.state}: not compared: {each.refused}")
        else:
            total, ran = counted(each.equal + len(each.changed), "key"), f"by batches {each.first} to {each.last}"
            said = f"{len(each.changed):,} of {total} would be another" if each.changed else f"the same: {total}"
            say(f"{each.state}: {said}, {ran}", "yellow" if each.changed else "")
            _print_keys(each.changed, "key", "now", "former code", "new code")
    return WRONG if compared.refused or any(each.changed for each in done) else 0


def _print_verified(done: Verified, as_json: bool) -> None:
    if as_json:
        print_json({**vars(done), "wrong": [row._asdict() for row in done.wrong]})
    elif done.refused:
        say(f"{done.state}: not verified: {done.refused}")
    else:
        total = counted(done.equal + len(done.wrong), "key")
        said = f"{len(done.wrong):,} of {total} wrong" if done.wrong else f"equal: {total}"
        say(f"{done.state}: {said}, after batch {done.txid}", "red" if done.wrong else "")
        for note in done.notes:
            say(f"{done.state}: {note}", "yellow")
        _print_keys(done.wrong, "key", "found", "expected", "wrong")


def _print_keys(rows: Sequence[tuple[Any, ...]], *columns: str) -> None:
    if not rows:
        return
    keys = [(key[0] if len(key) == 1 else key or None, values) for key, *values in rows[:_SHOWN]]
    show(([cell(key, is_key=True), *map(cell, values)] for key, values in keys), *columns)
    if len(rows) > _SHOWN:
        say(f"and {len(rows) - _SHOWN:,} more; --json has all of them")


def _print_origin(origin: ValueOrigin, as_json: bool, wide: bool) -> None:
    from trident.cli.log import commit_as_json, commit_line

    if as_json:
        facts = {name: value for name, value in vars(origin).items() if name != "batch"}
        print_json({**commit_as_json(origin.batch), **facts})
        return
    made_of = "by an updater, which does not say from which rows"
    if origin.count is not None:
        how = ", reduced" if origin.partial is None else f": {cell(origin.partial)}"
        made_of = counted(origin.count, "row") + how
    print_line(commit_line(origin.batch, f"{cell(origin.before)} -> {cell(origin.after)} ({made_of})", wide))
    for row in origin.rows:
        print_line(f"    {json.dumps(plain(row), ensure_ascii=False)}")


@command(state_app, "move", "`trident state move words.py:in_redis count --to words.py:in_postgres`")
def move_command(of: TopologyOptions, state: StateName, to: Annotated[str, option("", "MODULE:TOPOLOGY")]) -> None:
    """Move a state of a stopped topology to the place that its new declaration gives it. Readers may go on meanwhile.

    Every row is copied as it is stored, and compared; then the log notes the new place, and the former declaration is
    refused. After Ctrl-C, an error or a crash, run the command again: it continues. Or start the topology as it was
    declared: until the log has the note, nothing has changed for it.

    Exit codes: 0 moved, 1 failed, 2 wrong usage, 130 ended by Ctrl-C.

    `to`: The topology as it is declared from now on: with the state in another store, layout or place.
    """
    from trident.reading import move_state

    declared, new, config = of.load_both(to)
    try:
        with _MoveLines(problems(), state) as lines:
            moved = move_state(declared, state, new, config, lines.note, called=to)
    except KeyboardInterrupt:
        say(f"{state}: interrupted; the same command goes on where it was", "yellow", problems())
        raise
    if moved.rows is None:
        say(f"{state}: is in {to} already, after batch {moved.txid}; its former place is marked")
    else:
        there = f" ({moved.rows - moved.written:,} were there already)" if moved.written < moved.rows else ""
        say(f"{state}: moved to {to} after batch {moved.txid}: {counted(moved.rows, 'row')}{there}, all compared")


@command(state_app, "migrate", "`trident state migrate shops.py:topology total`")
def migrate_command(of: TopologyOptions, state: StateName) -> None:
    """Convert all values of a state to its declared type, with its migrate=, while its topology is stopped.

    A topology migrates each value that it reads by itself; after this command none of a former type is left: migrate=
    can go. After Ctrl-C, an error or a crash, run the command again, or start the topology.

    Exit codes: 0 migrated, 1 failed, 2 wrong usage, 130 ended by Ctrl-C.
    """
    from trident.reading import migrate_state

    topology, config = of.load()
    with _MoveLines(problems(), state) as lines:
        done = migrate_state(topology, state, config, lines.note)
    say(f"{state}: {counted(done.written, 'value')} migrated; none of a former type is left")


@command(state_app, "forget", "`trident state forget users.py:topology visits ann@example.com`")
def forget_command(
    of: TopologyOptions,
    state: StateName,
    keys: Annotated[list[str], argument("Keys; one of several fields is a JSON list.", "KEY")],
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


class _MoveLines(LiveLines):
    """Says how far a move is."""

    _what, _since = "", 0.0

    def note(self, what: str, done: int, total: int) -> None:
        if what != self._what:
            self._what, self._since = what, time.monotonic()
        if self.is_due():
            self.tell(f"{what}, {done:,} {f'of {total:,} ' if total else ''}rows{self._rate(done, total)}")

    def _rate(self, done: int, total: int) -> str:
        seconds = time.monotonic() - self._since
        if seconds <= 0 or not done:
            return ""
        left = f", {(total - done) * seconds / done:,.0f} s left" if total else ""
        return f", {done / seconds:,.0f} rows/s{left}"
