"""Where a RabbitMQ is, and how to connect to it."""

from __future__ import annotations

import contextlib
import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from trident.errors import ConfigError, EnvironmentProblem
from trident.extras import needs_package
from trident.servers.account import ServerAccount

_SCHEMES = ("amqp", "amqps")


@dataclass(frozen=True, repr=False, kw_only=True)
class RabbitMQOptions(ServerAccount):
    """A RabbitMQ and an account on it.

    `url`: `amqp://[user:password@]host:port/virtual-host`, or `amqps://` (TLS). The virtual host `/` is written `%2F`, or left
    out. A query is passed to pika.
    `tls_verify`: False accepts any certificate and any host name.
    `connect_timeout_s`: seconds to wait for a connection.
    `timeout_s`: seconds to wait for any other answer of the broker. It is taken for away then, also if its heartbeats come.
    `heartbeat_s`: after so many seconds without a sign of life the broker and the spout take each other for dead. Longer than
    the message timeout: a spout that waits for its pending tuples gives no sign.
    """

    url: str = field(kw_only=False)
    tls_verify: bool = True
    connect_timeout_s: float = 5.0
    timeout_s: float = 10.0
    heartbeat_s: int = 60

    def __post_init__(self) -> None:
        """Check the URL, the numbers, and that there is TLS if there are options of it."""
        scheme = urlsplit(self.url).scheme.lower()
        if scheme not in _SCHEMES:
            raise ConfigError(
                f"the URL of a RabbitMQ starts with {scheme or 'no scheme'!r}; write amqp://user:password@host:5672/%2F or "
                "amqps:// (TLS)"
            )
        self.check_tls("RabbitMQ", "write amqps:// or tls=True", self.tls_verify)
        if not min(self.connect_timeout_s, self.timeout_s) > 0:
            raise ConfigError(
                f"connect_timeout_s={self.connect_timeout_s!r}, timeout_s={self.timeout_s!r}: give numbers of seconds above 0"
            )
        if not isinstance(self.heartbeat_s, int) or self.heartbeat_s < 0:
            raise ConfigError(f"heartbeat_s={self.heartbeat_s!r}: give a whole number of seconds (0: no heartbeats)")
        with contextlib.suppress(EnvironmentProblem):  # pika may be where the spout runs, and not here
            self._parameters()

    @property
    def encrypts(self) -> bool:
        return self.tls or urlsplit(self.url).scheme.lower() == "amqps"

    @property
    def place(self) -> str:
        """The broker's address and virtual host for messages, without user and password."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2] or "localhost"
        return f"{host}{parts.path}".removesuffix("/%2F").removesuffix("/%2f").removesuffix("/")

    def parameters(self) -> Any:
        """Return pika's parameters of a connection."""
        parameters = self._parameters()
        context = self.tls_context(self.tls_verify)
        if context is not None:
            if not self.tls_verify:
                context.verify_mode = ssl.CERT_NONE
            parameters.ssl_options = driver().SSLOptions(context, parameters.host)
        return parameters

    def _parameters(self) -> Any:
        pika, scheme = driver(), "amqps" if self.encrypts else "amqp"
        try:
            parameters = pika.URLParameters(scheme + self.url[self.url.index("://") :])
        except (TypeError, ValueError) as error:
            # Its text may have a part of the URL; the query's names are no secret.
            known = f": {error}" if "URL parameter" in str(error) else ""
            raise ConfigError(
                f"the URL of a RabbitMQ cannot be read{known}; write amqp://user:password@host:5672/%2F"
            ) from None
        if self.user is not None or self.password is not None:
            own = parameters.credentials
            parameters.credentials = pika.PlainCredentials(self.user or own.username, self.password or own.password)
        parameters.socket_timeout = self.connect_timeout_s
        parameters.stack_timeout = 2 * self.connect_timeout_s
        parameters.blocked_connection_timeout = self.timeout_s
        if "heartbeat=" not in urlsplit(self.url).query:
            parameters.heartbeat = self.heartbeat_s
        return parameters


def driver() -> Any:
    """Return the module `pika`, imported when first needed."""
    with needs_package("a RabbitMQ spout", "rabbitmq", "pika"):
        import pika
    return pika
