"""Where a Redis is, and how to connect to it: the options that the spouts share with `RedisState`, by the same names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

from trident.errors import ConfigError, EnvironmentProblem
from trident.redaction import SECRET, Redacted

__all__ = ["RedisServerOptions", "driver"]

_SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, repr=False, kw_only=True)
class RedisServerOptions(Redacted):
    """A Redis server and an account on it.

    Attributes
    ----------
    url
        `redis://[user:password@]host:port/database`, `rediss://` (TLS) or `unix://path`. A query is passed to redis-py.
    user, password, database
        Used instead of those in the URL.
    tls
        True: as `rediss://`.
    tls_ca_file, tls_cert_file, tls_key_file
        PEM files: the authorities to trust (None: the system's), and this client's own certificate and key.
    tls_verify
        False accepts any certificate and any host name.
    connect_timeout_s, timeout_s
        Seconds to wait for a connection, and for each answer.
    retries
        How often a worker tries a read again after a lost connection, before its batch fails and is tried again.
    """

    url: str = field(kw_only=False)
    user: str | None = None
    password: str | None = field(default=None, metadata=SECRET)
    database: int | None = None
    tls: bool = False
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_verify: bool = True
    connect_timeout_s: float = 5.0
    timeout_s: float = 10.0
    retries: int = 3

    default_port: ClassVar[int] = 6379

    def __post_init__(self) -> None:
        """Check the URL, and that there is TLS if there are options of it."""
        scheme = urlsplit(self.url).scheme.lower()
        if scheme not in _SCHEMES:
            raise ConfigError(
                f"the URL of a Redis stream starts with {scheme or 'no scheme'!r}; write redis://host:port/database, "
                "rediss:// (TLS) or unix://path. A stream is on one server, so of a cluster give the server that has it"
            )
        if self.tls and scheme == "unix":
            raise ConfigError("tls=True with a unix:// URL: a Unix socket has no TLS")
        encrypts = self.tls or scheme == "rediss"
        if not encrypts and (self.tls_ca_file or self.tls_cert_file or self.tls_key_file or not self.tls_verify):
            raise ConfigError(
                "a Redis stream has TLS options and no TLS: nothing would be encrypted; write rediss:// or tls=True"
            )

    @property
    def place(self) -> str:
        """The server's address for messages, without user and password."""
        given = self.arguments()
        if "path" in given:
            return str(given["path"])
        place = f"{given.get('host', 'localhost')}:{given.get('port', self.default_port)}"
        return f"{place}/{given['db']}" if given.get("db") else place

    def arguments(self) -> dict[str, Any]:
        """Return redis-py's arguments of a connection, `connection_class` among them."""
        connections: Any = driver().connection
        scheme, _, rest = self.url.partition("://")
        try:
            arguments: dict[str, Any] = connections.parse_url(f"{'rediss' if self.tls else scheme.lower()}://{rest}")
        except ValueError:  # its text may have the URL, and so the password
            raise ConfigError(
                "the URL of a Redis stream cannot be read: write redis://user:password@host:port/0"
            ) from None
        arguments.setdefault("socket_timeout", self.timeout_s)
        arguments.setdefault("socket_connect_timeout", self.connect_timeout_s)
        given = {
            "username": self.user,
            "password": self.password,
            "db": self.database,
            "ssl_ca_certs": self.tls_ca_file,
            "ssl_certfile": self.tls_cert_file,
            "ssl_keyfile": self.tls_key_file,
        }
        arguments.update({argument: value for argument, value in given.items() if value is not None})
        if not self.tls_verify:
            arguments.update(ssl_cert_reqs="none", ssl_check_hostname=False)
        arguments.setdefault("connection_class", connections.Connection)
        return {**arguments, "protocol": 2, "decode_responses": False}

    def client(self, retries: int = 0) -> Any:
        """Return a client, not connected yet, whose calls are sent again after a lost connection, `retries` times."""
        from redis.backoff import ExponentialBackoff
        from redis.retry import Retry

        redis, arguments = driver(), self.arguments()
        lost = [redis.ConnectionError, redis.TimeoutError]
        retry = Retry(ExponentialBackoff(cap=2.0, base=0.05), retries)
        return redis.Redis(connection_pool=redis.ConnectionPool(retry=retry, retry_on_error=lost, **arguments))


def driver() -> Any:
    """Return the module `redis`, imported when first needed."""
    try:
        import redis
    except ImportError as error:
        if error.name != "redis":
            raise
        raise EnvironmentProblem(
            f"a Redis stream needs the package redis ({error}); pip install 'trident-spark[redis]'"
        ) from error
    return redis
