"""`trident changes`: what committed batches changed in a state, as lines of JSON, or as events over HTTP."""

from __future__ import annotations

from itertools import chain

import typer

from trident.cli.console import say
from trident.cli.drpc import until_a_signal
from trident.config import Config
from trident.http.plain_json import to_json
from trident.reading import changes
from trident.runtime.reading.change_feed import ChangeFeed
from trident.topology import TridentTopology


def print_changes(
    topology: TridentTopology, config: Config, state: str, since: str | None, snapshot: bool, follow: bool
) -> None:
    """Print a line for each batch: first, if asked for, the rows of a snapshot; with `follow` what is still to come as well."""
    with changes(topology, state, since, config) as feed:
        if snapshot:
            txid, rows = feed.snapshot()
            _print({"txid": txid, "position": feed.position, "rows": rows})
        for batch in feed if follow else chain.from_iterable(iter(feed.read, [])):
            _print({"txid": batch.txid, "position": str(feed.place_of(batch.txid)), **batch.as_mapping()})


def serve_changes(
    topology: TridentTopology, config: Config, state: str, host: str, port: int, token: str | None
) -> int:
    """Serve the changes until SIGINT or SIGTERM; returns the exit code."""
    from trident.cli.change_events import ChangeServer

    def opened(since: str | None) -> ChangeFeed:
        return changes(topology, state, since, config)

    with opened(None), until_a_signal() as wait, ChangeServer(opened, host, port, token) as server:
        say(
            f"{topology.name}: changes of {state} at {server.url}/changes?since=TXID, its rows at {server.url}/snapshot"
        )
        return 128 + wait()


def _print(line: object) -> None:
    typer.echo(to_json(line))
