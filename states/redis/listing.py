"""Lists what a state has: SCAN over the servers for strings, HSCAN for hashes.

A cursor means nothing to another process, and a key may move from a server that is still to come to one that is done. So
where a connection broke or a slot was moved meanwhile, all is listed once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from states.redis.calls import Exchange
from states.redis.layout import Layout
from states.redis.wire import Call, Link, Servers
from trident.errors import BackendError

__all__ = ["Names", "names_of"]

Names = list[bytes]

_PAGE = 1000
_START = b"0"
_PASSES = 5


def names_of(exchange: Exchange, servers: Servers, layout: Layout, what: str) -> Iterator[Names]:
    """Iterate over pages of names; a name may come twice, and names of something else may come too."""
    doing = f"list the keys of {what}"
    for _ in range(_PASSES):
        before = exchange.look(doing, servers.placement)
        yield from _pass(exchange, servers, layout, doing)
        if exchange.look(doing, servers.placement) == before:
            return
    raise BackendError(f"{doing}: slots were moved or connections broke each of {_PASSES} times; list them again")


def _pass(exchange: Exchange, servers: Servers, layout: Layout, doing: str) -> Iterator[Names]:
    if layout.hashed:
        for bucket in range(layout.buckets):
            yield from _fields(exchange, bucket, layout.stems[bucket], doing)
        return
    for server in exchange.each(doing, lambda link: link.name, servers.primaries):
        yield from _names(exchange, servers, server, layout.scan_pattern(), doing)


def _fields(exchange: Exchange, bucket: int, key: bytes, doing: str) -> Iterator[Names]:
    answers: list[list[Any]] = []
    cursor = _START
    while True:
        exchange.run(doing, [Call(bucket, partial(_hscan, key, cursor), answers.append, True)])
        cursor, pairs = answers.pop()
        yield pairs[::2]
        if cursor == _START:
            return


def _hscan(key: bytes, cursor: bytes) -> tuple[Any, ...]:
    return (b"HSCAN", key, cursor, b"COUNT", _PAGE)


def _names(exchange: Exchange, servers: Servers, server: str, pattern: bytes, doing: str) -> Iterator[Names]:
    cursor = _START

    def page(link: Link) -> list[Any]:
        (answer,) = link.ask((b"SCAN", cursor, b"MATCH", pattern, b"COUNT", _PAGE))
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    def that_server() -> list[Link]:
        return [link for link in servers.primaries() if link.name == server]

    while True:
        pages = exchange.each(doing, page, that_server)
        if not pages:
            return  # it has left the cluster, so there will be another pass
        ((cursor, names),) = pages
        yield names
        if cursor == _START:
            return
