"""Where a state's buckets live: one server, or the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from states._redis_errors import driver
from states._redis_layout import Layout
from states._redis_options import RedisOptions
from states._redis_wire import Link, Servers
from trident.errors import ConfigError

__all__ = ["servers_of"]

Greet = Callable[[Link], None]

_OWN_TIMEOUTS = {"socket_timeout": "timeout_s", "socket_connect_timeout": "connect_timeout_s"}
_OVERRIDES = {"username": "username", "password": "password", "db": "database"}
_TLS_FILES = {"ssl_ca_certs": "tls_ca_file", "ssl_certfile": "tls_cert_file", "ssl_keyfile": "tls_key_file"}
_DEFAULT_PORT = 6379


def servers_of(options: RedisOptions, layout: Layout, greet: Greet) -> Servers:
    """Return the servers that the options name. Nothing is connected yet."""
    if options.clustered:
        return _Cluster(options, layout, greet)
    arguments = _arguments(options, _plain_url(options, urlsplit(options.url).netloc))
    return _OneServer(Link(_connection(arguments), _name(arguments), greet))


class _OneServer:
    def __init__(self, link: Link) -> None:
        self.name, self._link = link.name, link

    def link(self, bucket: int) -> Link:
        return self._link

    def link_at(self, host: str, port: int) -> Link:
        return self._link

    def links(self) -> Sequence[Link]:
        return (self._link,)

    def primaries(self) -> Sequence[Link]:
        return (self._link,)

    def forget(self) -> None:
        self._link.drop()


class _Cluster:
    """Asks any node which node has which slots, and keeps a connection to each that is needed."""

    def __init__(self, options: RedisOptions, layout: Layout, greet: Greet) -> None:
        netloc = urlsplit(options.url).netloc
        user, at, hosts = netloc.rpartition("@")
        self._seeds = [_arguments(options, _plain_url(options, user + at + host)) for host in hosts.split(",")]
        self._greet = greet
        self.name = ", ".join(map(_name, self._seeds))
        self._slots = [driver().crc.key_slot(stem) for stem in layout.stems]
        self._links: dict[tuple[str, int], Link] = {}
        self._ranges: list[tuple[int, int, tuple[str, int]]] = []
        self._of_bucket: list[Link] = []

    def link(self, bucket: int) -> Link:
        if not self._of_bucket:
            self._find()
        return self._of_bucket[bucket]

    def link_at(self, host: str, port: int) -> Link:
        found = self._links.get((host, port))
        if found is None:
            arguments = {**self._seeds[0], "host": host, "port": port}
            found = self._links[host, port] = Link(_connection(arguments), _name(arguments), self._greet)
        return found

    def links(self) -> Sequence[Link]:
        return list(self._links.values())

    def primaries(self) -> Sequence[Link]:
        if not self._of_bucket:
            self._find()
        return [self.link_at(*address) for address in dict.fromkeys(address for _, _, address in self._ranges)]

    def forget(self) -> None:
        for link in self._links.values():
            link.drop()
        self._links.clear()
        self._of_bucket = []

    def _find(self) -> None:
        errors = driver().exceptions
        known = [address for _, _, address in self._ranges]
        seeds = [(seed.get("host", "localhost"), seed.get("port", _DEFAULT_PORT)) for seed in self._seeds]
        failure: Exception = errors.ConnectionError("no node is named")
        for host, port in dict.fromkeys([*known, *seeds]):
            try:
                self._take(host, self._slots_of(host, port))
                return
            except (errors.ConnectionError, errors.TimeoutError, errors.ClusterDownError) as error:
                failure = error
        raise failure

    def _slots_of(self, host: str, port: int) -> list[Any]:
        # A connection for this one question: a link would be greeted as one that is written to.
        link = Link(_connection({**self._seeds[0], "host": host, "port": port}), f"{host}:{port}", lambda _link: None)
        try:
            (answer,) = link.ask((b"CLUSTER", b"SLOTS"))
        finally:
            link.drop()
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    def _take(self, asked: str, slots: list[Any]) -> None:
        # A node may not know its own address, or not want to tell it: then it is the one that was asked.
        self._ranges = [
            (first, last, ((host or b"").decode() or asked, port)) for first, last, (host, port, *_), *_ in slots
        ]
        self._of_bucket = [self._link_of(slot) for slot in self._slots]

    def _link_of(self, slot: int) -> Link:
        for first, last, address in self._ranges:
            if first <= slot <= last:
                return self.link_at(*address)
        raise driver().exceptions.ClusterDownError(f"CLUSTERDOWN no node serves slot {slot}")


def _plain_url(options: RedisOptions, netloc: str) -> str:
    scheme = "rediss" if options.tls else options.scheme.removesuffix("+cluster")
    rest = options.url.partition("://")[2]
    return f"{scheme}://{netloc}{rest[len(urlsplit(options.url).netloc) :]}"


def _arguments(options: RedisOptions, url: str) -> dict[str, Any]:
    """Return the arguments of a connection, `connection_class` among them."""
    connections: Any = driver().connection
    try:
        arguments: dict[str, Any] = connections.parse_url(url)
    except ValueError as error:  # its text may have the URL, and so the password
        raise ConfigError("the URL of a Redis state cannot be read: write redis://user:password@host:port/0") from error
    for argument, option in _OWN_TIMEOUTS.items():
        arguments.setdefault(argument, getattr(options, option))
    given = {argument: getattr(options, option) for argument, option in {**_OVERRIDES, **_TLS_FILES}.items()}
    arguments.update({argument: value for argument, value in given.items() if value is not None})
    if not options.tls_verify:
        arguments.update(ssl_cert_reqs="none", ssl_check_hostname=False)
    arguments.setdefault("connection_class", connections.Connection)
    return arguments


def _connection(arguments: dict[str, Any]) -> Any:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    others = {name: value for name, value in arguments.items() if name != "connection_class"}
    try:
        # Retried by `Exchange` alone. Protocol 2 has no messages between the answers.
        return arguments["connection_class"](
            **{**others, "retry": Retry(NoBackoff(), 0), "protocol": 2, "decode_responses": False}
        )
    except TypeError as error:
        raise ConfigError(f"the URL of a Redis state has a query that redis-py does not know: {error}") from error


def _name(arguments: dict[str, Any]) -> str:
    """Return the server's address for messages, without user and password."""
    if "path" in arguments:
        return str(arguments["path"])
    place = f"{arguments.get('host', 'localhost')}:{arguments.get('port', _DEFAULT_PORT)}"
    return f"{place}/{arguments['db']}" if arguments.get("db") else place
