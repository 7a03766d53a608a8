"""`trident changes`: what committed batches changed in a state, as lines of JSON, or as server-sent events over HTTP.

`GET /changes?since=TXID` has an event a batch, with the position behind it as its `id`; a client that comes again sends the
last one as `Last-Event-ID`. 410: what it has not seen is not kept any more, or what it has seen was undone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Any

from trident.cli.console import EndingSignals, print_line, say
from trident.errors import ChangesGoneError, TridentError
from trident.read.change_feed import ChangedBatch, ChangeFeed
from trident.servers.plain_json import json_answer, plain, to_json
from trident.servers.server_thread import ServerThread

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.types import Scope

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


def serve_changes(open_feed: OpenFeed, what: str, host: str, port: int, token: str | None) -> int:
    with (
        open_feed(None),
        EndingSignals("stopping", "ended at once", as_json=False) as signals,
        ChangeServer(open_feed, host, port, token) as server,
    ):
        url = server.url
        say(f"{what} at {url}/changes?since=TXID, its rows at {url}/snapshot")
        return signals.wait()


class ChangeServer(ServerThread):
    """Serves a feed; each client has one of its own, opened by `open_feed(since)`."""

    what, cannot, extra, grace_s = "a feed of changes", "changes cannot be served at", "ui", 2

    def __init__(self, open_feed: OpenFeed, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        self._open_feed = open_feed
        super().__init__(host, port, 256, token)

    def routes(self) -> list[BaseRoute]:
        from starlette.routing import Route

        paths = {"/changes": self._changes, "/snapshot": self._snapshot}
        return [Route(path, answer, methods=["GET"]) for path, answer in paths.items()]

    def refusal(self, scope: Scope, status: int, cause: str) -> Response:
        return _problem(status, cause)

    async def answer_error(self, request: Request, error: Exception) -> Response:
        from starlette.exceptions import HTTPException

        here = f"{request.method} {request.url.path}"
        if isinstance(error, HTTPException):
            return _problem(error.status_code, f"{here}: this server has GET /changes and GET /snapshot")
        return _problem(500, f"{here} failed; the log of the server says why")

    async def _changes(self, request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import StreamingResponse

        asked = request.headers.get("last-event-id") or request.query_params.get("since")
        try:
            feed = await run_in_threadpool(self._open_feed, asked)
        except (ValueError, TridentError) as error:
            return _problem(400 if isinstance(error, ValueError) else 503, error)  # some are both
        try:
            first = await run_in_threadpool(feed.read)
        except TridentError as error:
            await run_in_threadpool(feed.close)
            return _problem(410 if isinstance(error, ChangesGoneError) else 503, error)
        return StreamingResponse(_events(feed, first, run_in_threadpool), media_type="text/event-stream")

    def _snapshot(self, request: Request) -> Response:
        try:
            with closing(self._open_feed(None)) as feed:
                txid, rows = feed.snapshot()
        except TridentError as error:
            return _problem(503, error)
        return json_answer(plain({"txid": txid, "rows": rows}))


def _problem(status: int, error: object) -> Response:
    return json_answer({"error": str(error), "kind": type(error).__name__}, status)


async def _events(feed: ChangeFeed, first: list[ChangedBatch], in_thread: Any) -> AsyncIterator[bytes]:
    """Give the events of a feed until the client goes; each second or so a look at the log, and now and then a sign of life."""
    batches, pause, silent_s = first, _SHORTEST_S, 0.0
    try:
        while True:
            for batch in batches:
                place = str(feed.place_of(batch.txid)).encode()
                yield b"id: %s\ndata: %s\n\n" % (place, to_json(batch.as_mapping(), str))
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
