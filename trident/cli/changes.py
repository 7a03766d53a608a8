"""`trident changes`: what committed batches changed in a state, as lines of JSON, or as server-sent events over HTTP.

===========================  ===========================================================================================
`GET /changes?since=TXID`    an event a batch, those to come included: its `id` is the position behind it, which `since` takes
                             as well, its `data` `{"txid": …, "changes": [{"key": […], "before": …, "after": …}]}`. A client
                             that comes again sends the last id as `Last-Event-ID`, as a browser's `EventSource` does by itself.
                             Without either it begins now. 410: what the client has not seen is not kept any more, or what it
                             has seen was undone
`GET /snapshot`              `{"txid": …, "rows": [[key …, value]]}`, to begin with
===========================  ===========================================================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing
from itertools import chain
from typing import Any

from trident.cli.console import EndingSignals, print_line, say
from trident.config import Config
from trident.errors import ChangesGoneError, TridentError
from trident.read.change_feed import ChangedBatch, ChangeFeed
from trident.reading import changes
from trident.servers.plain_json import json_answer, plain, to_json
from trident.servers.server_thread import Guard, ServerThread, is_loopback
from trident.topology import TridentTopology

OpenFeed = Callable[[str | None], ChangeFeed]

_SHORTEST_S, _LONGEST_S, _SIGN_OF_LIFE_S = 0.05, 1.0, 15.0


def print_changes(feed: ChangeFeed, snapshot: bool, follow: bool) -> None:
    """Print a line for each batch: first, if asked for, the rows of a snapshot; with `follow` what is still to come as well."""
    if snapshot:
        txid, rows = feed.snapshot()
        _print_line({"txid": txid, "position": feed.position, "rows": rows})
    for batch in feed if follow else chain.from_iterable(iter(feed.read, [])):
        _print_line({"txid": batch.txid, "position": str(feed.place_of(batch.txid)), **batch.as_mapping()})


def _print_line(value: Mapping[str, Any]) -> None:
    print_line(to_json(value, str).decode())


def serve_changes(
    topology: TridentTopology, config: Config, state: str, host: str, port: int, token: str | None
) -> int:
    """Serve the changes until SIGINT or SIGTERM; returns the exit code."""

    def open_feed(since: str | None) -> ChangeFeed:
        return changes(topology, state, since, config)

    with (
        open_feed(None),
        EndingSignals("stopping", "ended at once", as_json=False) as signals,
        ChangeServer(open_feed, host, port, token) as server,
    ):
        url = server.url
        say(f"{topology.name}: changes of {state} at {url}/changes?since=TXID, its rows at {url}/snapshot")
        return signals.wait()


class ChangeServer(ServerThread):
    """Serves a feed; each client has one of its own.

    `open_feed`: `open_feed(since)` opens a feed.
    `host`, `port`: where to listen; port 0 takes a free one.
    `token`: what `Authorization: Bearer …` must have; None: whoever reaches the address may read.
    """

    what, cannot, extra, grace_s = "a feed of changes", "changes cannot be served at", "ui", 2

    def __init__(self, open_feed: OpenFeed, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        super().__init__(lambda: _app(open_feed, is_loopback(host), token), host, port, 256, token)


def _app(open_feed: OpenFeed, loopback: bool, token: str | None) -> Any:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    def problem(status: int, error: object) -> Response:
        return json_answer({"error": str(error), "kind": type(error).__name__}, status)

    async def changes(request: Request) -> Response:
        asked = request.headers.get("last-event-id") or request.query_params.get("since")
        try:
            feed = await run_in_threadpool(open_feed, asked)
        except ValueError as error:
            return problem(400, error)
        except TridentError as error:
            return problem(503, error)
        try:
            first = await run_in_threadpool(feed.read)
        except TridentError as error:
            await run_in_threadpool(feed.close)
            return problem(410 if isinstance(error, ChangesGoneError) else 503, error)
        return StreamingResponse(_events(feed, first, run_in_threadpool), media_type="text/event-stream")

    def snapshot(request: Request) -> Response:
        try:
            with closing(open_feed(None)) as feed:
                txid, rows = feed.snapshot()
        except TridentError as error:
            return problem(503, error)
        return json_answer(plain({"txid": txid, "rows": rows}))

    rules = token, loopback, lambda scope: token is not None, lambda scope, status, cause: problem(status, cause)
    return Starlette(
        routes=[Route("/changes", changes, methods=["GET"]), Route("/snapshot", snapshot, methods=["GET"])],
        middleware=[Middleware(Guard, *rules)],
    )


async def _events(feed: ChangeFeed, first: list[ChangedBatch], in_thread: Any) -> AsyncIterator[bytes]:
    """Give the events of a feed until the client goes; each second or so a look at the log, and now and then a sign of life."""
    batches, pause, silent_s = first, _SHORTEST_S, 0.0
    try:
        while True:
            for batch in batches:
                yield b"id: %s\ndata: %s\n\n" % (
                    str(feed.place_of(batch.txid)).encode(),
                    to_json(batch.as_mapping(), str),
                )
            pause = _SHORTEST_S if batches else min(_LONGEST_S, 2 * pause)
            silent_s = 0.0 if batches else silent_s + pause
            if silent_s >= _SIGN_OF_LIFE_S:
                silent_s = 0.0
                yield b": nothing new\n\n"
            await asyncio.sleep(0 if batches else pause)
            batches = await in_thread(feed.read)
    except TridentError as error:  # the client comes again, and is told why it cannot go on
        yield b"event: end\ndata: %s\n\n" % to_json({"error": str(error), "kind": type(error).__name__})
    finally:
        feed.close()
