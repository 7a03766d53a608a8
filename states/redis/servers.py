"""Where a state's buckets live: one server, or the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from urllib.parse import urlsplit

from states.redis.cluster import Cluster
from states.redis.connecting import arguments_of, connection_of, name_of
from states.redis.layout import Layout
from states.redis.options import RedisOptions
from states.redis.wire import Link, Servers

__all__ = ["servers_of"]


def servers_of(options: RedisOptions, layout: Layout, greet: Callable[[Link], None]) -> Servers:
    """Return the servers that the options name. Nothing is connected yet."""
    netloc = urlsplit(options.url).netloc
    if options.clustered:
        user, at, hosts = netloc.rpartition("@")
        seeds = [arguments_of(options, user + at + host) for host in hosts.split(",")]
        return Cluster(seeds, layout.stems, greet)
    arguments = arguments_of(options, netloc)
    return _OneServer(Link(connection_of(arguments), name_of(arguments), greet))


class _OneServer:
    def __init__(self, link: Link) -> None:
        self.name, self._link, self._broken = link.name, link, 0

    def link(self, bucket: int) -> Link:
        return self._link

    def link_at(self, host: str, port: int) -> Link:
        return self._link

    def links(self) -> Sequence[Link]:
        return (self._link,)

    def primaries(self) -> Sequence[Link]:
        return (self._link,)

    def placement(self) -> Hashable:
        return self._broken

    def forget(self) -> None:
        self._link.drop()
        self._broken += 1
