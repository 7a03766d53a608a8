"""`trident log`: what a transaction log says, for people and as JSON."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from trident.cli.console import PIPE_WIDTH, is_wide, print_json, print_line, results, say, show, show_facts
from trident.config import Config
from trident.errors import LogError
from trident.log.log_address import open_reader, read_history
from trident.log.log_interface import TransactionLogReader
from trident.log.log_reader import exists
from trident.log.records import LETTERS, TIME, CommitRecord, numbers_of
from trident.naming import amount, counted, cut
from trident.redaction import redacted
from trident.servers.log_addresses import is_log_address
from trident.spout.interfaces import TransactionAttempt
from trident.state.txid import RETRY_BITS

_NOUNS = {"batches": ("batch", "batches"), "dead_letters": ("dead letter",), "tuples": ("tuple",)}
_SHORT_TEXT = 24


def log(log_dir: str | os.PathLike[str], last: int, as_json: bool, wide: bool = False) -> None:
    contents = report(log_dir, last)
    if as_json:
        print_json(contents)
    else:
        console = results()
        if wide:
            console.width = PIPE_WIDTH
        _print(contents, console, wide)


def print_history(log_dir: str | Path, first: int, since: datetime | None, as_json: bool, wide: bool = False) -> None:
    """Print a line for each batch in the history of a log, from batch `first` and from the time `since` (UTC) on."""
    for record in read_history(log_dir, first, since=since and since.replace(tzinfo=UTC)):
        if as_json:
            print_json(commit_as_json(record))
        else:
            counts = ", ".join(counted(count, *_NOUNS.get(name, (name,))) for name, count in record.counts.items())
            print_line(commit_line(record, counts or "nothing", wide))


def commit_line(record: CommitRecord, what: str, wide: bool) -> str:
    """Return a committed batch as one line: number, time, attempt, `what`, and what its sources gave."""
    each = commit_as_json(record)
    sources = "; ".join(_said(spout, one, wide) for spout, one in each["spouts"].items() if one is not None)
    return "  ".join(filter(None, (str(each["txid"]), _at(each), _in_words(each["attempt"]), what, sources)))


@contextmanager
def opened_log(log_dir: str | os.PathLike[str]) -> Iterator[TransactionLogReader]:
    """Open a log to read it; `LogError` if there is none in the folder, which names those in the folders within it."""
    with closing(open_reader(log_dir)) as reader:
        if not reader.is_there():
            raise LogError(_no_log(str(log_dir)))
        yield reader


def report(log_dir: str | os.PathLike[str], last: int) -> dict[str, Any]:
    with opened_log(log_dir) as reader:
        state, writer = reader.refresh(), reader.holder()
    return {
        "path": str(log_dir),
        "topology": state.topology,
        "incarnation": state.incarnation,
        "epoch": state.epoch,
        "writer": writer,
        "txid": state.txid,
        "winners": [{"from": first, "attempt": _attempt(attempt)} for first, attempt in state.winners.ranges],
        "adopted": dict(state.adopted),
        "totals": dict(state.totals),
        "history": None if state.retention is None else str(state.retention),
        "states": {
            name: {
                "partitions": state.layouts[name][0] if name in state.layouts else None,
                "kind": state.layouts[name][1] if name in state.layouts else None,
                "committedBy": "executors" if name in state.executors else "driver",
                "sentinels": {
                    str(partition): {"txid": sentinel.txid, "attempt": _attempt(sentinel.attempt)}
                    for partition, sentinel in sorted(state.touched.get(name, {}).items())
                },
            }
            for name in sorted({*state.layouts, *state.touched})
        },
        "declared": {what: _plain(facts) for what, facts in state.declared.items()},
        "commits": [commit_as_json(record) for record in list(state.history)[-last:]] if last else [],
        "pending": [
            {"txid": txid, "definitions": {spout: _plain(one) for spout, one in spouts.items()}}
            for txid, spouts in sorted(state.definitions.items())
        ],
        "tornBytes": reader.torn,
    }


def short(definition: Any, width: int = 60) -> str:
    """Return a spout's definition in a few words: the ends of long lists and of long texts."""
    return cut(_short(definition), width)


def _said(name: str, definition: Any, wide: bool) -> str:
    if name == LETTERS:
        numbers = (f"{txid}-{number}" for txid, ranges in definition.items() for number in numbers_of(ranges))
        return f"dead letters: {', '.join(numbers) if wide else short(list(numbers))}"
    if name == TIME:
        now = datetime.fromtimestamp(definition["now"] / 1000, UTC).isoformat(" ", timespec="milliseconds")
        return f"time: {now.partition('+')[0]}{' (begins again)' if 'begins_again' in definition else ''}"
    return f"{name}: {json.dumps(definition, ensure_ascii=False) if wide else short(definition)}"


def _plain(definition: Any) -> Any:
    """Return a definition as JSON has it; of bytes, which only their spout understands, their size; URLs without secrets."""
    if isinstance(definition, dict):
        return {str(key): _plain(each) for key, each in definition.items()}
    if isinstance(definition, (list, tuple)):
        return [_plain(each) for each in definition]
    if isinstance(definition, str):
        return redacted(definition)
    return f"<{amount(len(definition), 'bytes')}>" if isinstance(definition, bytes) else definition


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_short(each)}" for key, each in value.items())
    if isinstance(value, (list, tuple)):
        if len(value) <= 4:
            return "[" + ", ".join(map(_short, value)) + "]"
        return f"[{_short(value[0])} … {_short(value[-1])}] ({len(value)})"
    text = str(value)
    return text if len(text) <= _SHORT_TEXT else f"…{text[1 - _SHORT_TEXT :]}"  # the end of a path says most


def _no_log(log_dir: str) -> str:
    if is_log_address(log_dir):
        return f"there is no transaction log at {log_dir}"
    directory = Path(log_dir)
    there = directory if directory.is_dir() else Path(Config().log_folder(log_dir)).parent  # a name with a slip in it
    inside = sorted(str(one) for one in there.iterdir() if one.is_dir() and exists(one)) if there.is_dir() else []
    hint = f"; there are some in {', '.join(inside)}" if inside else ""
    found = "has no segment of a log" if there is directory else "is a file" if directory.exists() else "is not there"
    return f"there is no transaction log in {directory}: it {found}{hint}"


def _attempt(attempt: int) -> str:
    return f"{attempt >> RETRY_BITS}.{attempt & (1 << RETRY_BITS) - 1}"


def _in_words(attempt: str) -> str:
    start, retry = map(int, attempt.split("."))
    return TransactionAttempt(0, start << RETRY_BITS | retry).in_words


def _at(commit: Mapping[str, Any]) -> str:
    return str(commit["at"]).partition("+")[0].replace("T", " ")


def commit_as_json(record: CommitRecord) -> dict[str, Any]:
    return {
        "txid": record.txid,
        "attempt": _attempt(record.attempt),
        "at": datetime.fromtimestamp(record.at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "counts": dict(record.counts),
        "spouts": {spout: _plain(definition) for spout, definition in record.spouts.items()},
        "touched": {state: list(partitions) for state, partitions in record.touched.items()},
    }


def _print(contents: Mapping[str, Any], console: Console, wide: bool) -> None:
    winners = "; ".join(f"{_in_words(each['attempt'])} from batch {each['from']}" for each in contents["winners"])
    totals = ", ".join(counted(count, *_NOUNS.get(name, (name,))) for name, count in sorted(contents["totals"].items()))
    adopted = "".join(f"; state {name!r} as found up to batch {txid}" for name, txid in contents["adopted"].items())
    near = contents["path"] if is_log_address(contents["path"]) else os.path.relpath(contents["path"])
    facts = {
        "topology": contents["topology"],
        "log": f"{near}, incarnation {contents['incarnation']}, epoch {contents['epoch']}",
        "written by": contents["writer"] or "no driver at the moment",
        "last batch": f"{contents['txid']:,}",
        "total": totals or "nothing",
        **({"history": f"kept for {contents['history']}"} if contents["history"] else {}),
        "winning attempts": (winners or "none") + adopted,
    }
    show_facts(facts, console)
    _print_states(contents["states"], console, wide)
    _print_declared(contents["declared"], console)
    _print_commits(contents["commits"], console, wide)
    for each in contents["pending"]:
        definitions = "; ".join(_said(spout, one, wide) for spout, one in each["definitions"].items())
        say(f"defined, not committed: batch {each['txid']}: {definitions}", console=console)
    if contents["tornBytes"]:
        say(f"{amount(contents['tornBytes'], 'bytes')} of an unfinished record follow", console=console)


def _print_states(states: Mapping[str, Any], console: Console, wide: bool) -> None:
    rows = []
    for name, state in states.items():
        marks = [f"{at}: batch {one['txid']} ({_in_words(one['attempt'])})" for at, one in state["sentinels"].items()]
        most = len(marks) if wide else 8
        shown = ", ".join(marks[:most]) + (f" … ({len(marks)})" if len(marks) > most else "")
        partitions = str(state["partitions"] or "?")
        rows.append((name, state["kind"] or "?", partitions, state["committedBy"], shown or "never touched"))
    columns = ("state", "kind", "partitions", "committed by", "last commit of each partition")
    if rows:
        show(rows, *columns, title="states", console=console)


def _print_declared(declared: Mapping[str, Any], console: Console) -> None:
    """What the states mean, and the streams: a topology that is started on the log has to agree."""
    states = [
        (name, *(", ".join(facts[what]) for what in ("key", "value")), f"{facts['by']}({', '.join(facts['of'])})")
        + (", ".join(facts["streams"]),)
        for name, facts in declared.get("states", {}).items()
    ]
    streams = [
        (name, f"{facts['spout']} ({facts['promise']})", ", ".join(facts["fields"]))
        for name, facts in declared.get("streams", {}).items()
    ]
    if states:
        show(states, "state", "key", "value", "by", "fed by", title="declared", console=console)
    if streams:
        show(streams, "stream", "spout", "fields", console=console)


def _print_commits(commits: list[dict[str, Any]], console: Console, wide: bool) -> None:
    # What a source has in a batch may be long: it comes last and short; all of it is in the JSON.
    details = ("partitions", "offsets") if is_wide(console) else ()
    rows = []
    for each in commits:
        offsets = "\n".join(_said(spout, one, wide) for spout, one in each["spouts"].items())
        touched = "\n".join(f"{name}: {parts if wide else _short(parts)}" for name, parts in each["touched"].items())
        attempt, tuples = _in_words(each["attempt"]), f"{each['counts'].get('tuples', 0):,}"
        rows.append((str(each["txid"]), attempt, _at(each), tuples, *(touched, offsets)[: len(details)]))
    columns = ("batch", "attempt", "committed (UTC)", "tuples", *details)
    if rows:
        show(rows, *columns, right=[0, 3], title="last commits", console=console)
