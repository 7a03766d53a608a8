"""Lists what a state has: SCAN over the servers for strings, HSCAN for hashes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from states._redis_layout import Layout
from states._redis_wire import Call, Exchange, Link, Servers
from trident.errors import BackendError

__all__ = ["Names", "names_of"]

Names = list[bytes]

_PAGE = 1000
_START = b"0"


def names_of(exchange: Exchange, servers: Servers, layout: Layout, what: str) -> Iterator[Names]:
    """Iterate over pages of names; a name may come twice, and names of something else may come too."""
    doing = f"list the keys of {what}"
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
        exchange.run(doing, [Call(bucket, partial(_hscan, key, cursor), answers.append)])
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
            raise BackendError(f"{doing}: node {server} has left the cluster; list them again")
        ((cursor, names),) = pages
        yield names
        if cursor == _START:
            return
