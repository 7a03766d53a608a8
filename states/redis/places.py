"""Where a state is: on one server, or on the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from states.redis.cluster import Cluster
from states.redis.cluster_layout import ClusterLayout
from states.redis.connecting import arguments_of, link_of
from states.redis.layout import Layout
from states.redis.options import RedisOptions
from states.redis.wire import Link, Server

__all__ = ["place_of"]


def place_of(options: RedisOptions, prefix: str, greet: Callable[[Link], None]) -> tuple[Layout, Server]:
    """Return the names of the keys, and their servers. Nothing is connected yet."""
    hashed, expires = options.hash_key is not None, options.ttl_s is not None
    if options.clustered:
        layout = ClusterLayout(prefix, options.buckets, hashed, expires)
        return layout, Cluster(options, layout.stems, greet)
    one = link_of(arguments_of(options, urlsplit(options.url).netloc), greet)
    return Layout([prefix.encode()], hashed, expires), Server(one)
