"""Connections to Redis servers: redis-py's arguments for them, from the options of a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from states.redis.faults import driver
from states.redis.options import RedisOptions
from states.redis.wire import Link
from trident.errors import ConfigError

__all__ = ["DEFAULT_PORT", "arguments_of", "link_of", "name_of"]

_OWN_TIMEOUTS = {"socket_timeout": "timeout_s", "socket_connect_timeout": "connect_timeout_s"}
_OVERRIDES = {"username": "user", "password": "password", "db": "database"}
_TLS_FILES = {"ssl_ca_certs": "tls_ca_file", "ssl_certfile": "tls_cert_file", "ssl_keyfile": "tls_key_file"}
DEFAULT_PORT = 6379


def arguments_of(options: RedisOptions, netloc: str) -> dict[str, Any]:
    """Return the arguments of a connection to the server at `netloc`, `connection_class` among them."""
    url = _plain_url(options, netloc)
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


def link_of(arguments: dict[str, Any], greet: Callable[[Link], None]) -> Link:
    """Return a link to a server, not connected yet; `greet` is called with it whenever it was connected."""
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    others = {name: value for name, value in arguments.items() if name != "connection_class"}
    try:
        # Only `Wire` sends again. Protocol 2 has no messages between the answers.
        connection = arguments["connection_class"](
            **{**others, "retry": Retry(NoBackoff(), 0), "protocol": 2, "decode_responses": False}
        )
    except TypeError as error:
        raise ConfigError(f"the URL of a Redis state has a query that redis-py does not know: {error}") from error
    return Link(connection, name_of(arguments), greet)


def name_of(arguments: dict[str, Any]) -> str:
    """Return the server's address for messages, without user and password."""
    if "path" in arguments:
        return str(arguments["path"])
    place = f"{arguments.get('host', 'localhost')}:{arguments.get('port', DEFAULT_PORT)}"
    return f"{place}/{arguments['db']}" if arguments.get("db") else place


def _plain_url(options: RedisOptions, netloc: str) -> str:
    scheme = "rediss" if options.tls else options.scheme.removesuffix("+cluster")
    rest = options.url.partition("://")[2]
    return f"{scheme}://{netloc}{rest[len(urlsplit(options.url).netloc) :]}"
