"""A Redis: its address, account and TLS, redis-py's arguments for a connection, and what its errors mean."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar
from urllib.parse import urlsplit

from trident.errors import ConfigError
from trident.extras import needs_package
from trident.servers.account import ServerAccount
from trident.setting_types import seconds, whole

DEFAULT_PORT = 6379

# The code of an error, which Redis before 7 hides in the text of the error of a script.
_CODE = re.compile(
    r"\b(OOM|READONLY|LOADING|BUSY|MISCONF|NOREPLICAS|TRYAGAIN|CLUSTERDOWN|MASTERDOWN|NOAUTH|WRONGPASS|NOPERM|WRONGTYPE|"
    r"CROSSSLOT|MOVED|ASK)\b"
)
_TRANSIENT = frozenset({"READONLY", "LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"})
_STRANGER = frozenset({"NOAUTH", "WRONGPASS", "NOPERM"})
_ADVICE = {
    "OOM": "raise maxmemory, or free memory",
    "READONLY": "the server is a replica: give the address of the primary, or wait until the failover is over",
    "LOADING": "the server is loading its data; wait until it has",
    "BUSY": "the server runs a script: wait until it ends, or end it with SCRIPT KILL",
    "NOAUTH": "the server asks for a password: give user and password in the URL or the options",
    "WRONGPASS": "check user and password",
    "TRYAGAIN": "a slot is being moved to another node: wait until it has arrived (redis-cli --cluster check shows it)",
    "ASK": "a slot is being moved to another node: wait until it has arrived (redis-cli --cluster check shows it)",
    "CLUSTERDOWN": "wait until the cluster has recovered, or repair it (redis-cli --cluster check shows what is wrong)",
    "NOREPLICAS": "wait until the replicas are back",
    "MISCONF": "the server cannot save its data: look into its log",
}


@cache
def driver() -> Any:
    """Return the module `redis`, imported when first needed; its C parts (`hiredis`) are checked for as well."""
    with needs_package("Redis", "redis", "hiredis"):
        import hiredis  # noqa: F401
    with needs_package("Redis", "redis", "redis"):
        import redis
    return redis


@dataclass(frozen=True, repr=False, kw_only=True)
class RedisServer(ServerAccount):
    """A Redis server and an account on it.

    Attributes
    ----------
    schemes, forms
        The URLs that are accepted, and how messages show them.
    url
        `redis://[user:password@]host:port/database`, `rediss://` (TLS) or `unix://path`. A query
        (`?health_check_interval=30`) is passed to redis-py.
    database
        Used instead of that in the URL, as user and password are.
    tls_verify
        False accepts any certificate and any host name.
    connect_timeout_s, timeout_s
        Seconds to wait for a connection, and for each answer.
    """

    schemes: ClassVar[tuple[str, ...]] = ("redis", "rediss", "unix")
    forms: ClassVar[str]

    url: str = field(kw_only=False)
    database: int | None = whole(None, 0)
    tls_verify: bool = True
    connect_timeout_s: float = seconds(5.0)
    timeout_s: float = seconds(10.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scheme not in self.schemes:
            raise ConfigError(
                f"the URL of {self.subject()} starts with {self.scheme or 'no scheme'!r}; write {self.forms}"
            )
        if self.tls and self.scheme == "unix":
            raise ConfigError("tls=True with a unix:// URL: a Unix socket has no TLS")

    @property
    def scheme(self) -> str:
        return urlsplit(self.url).scheme.lower()

    @property
    def encrypts(self) -> bool:
        return self.tls or self.scheme.startswith("rediss")

    @property
    def has_tls_options(self) -> bool:
        return super().has_tls_options or not self.tls_verify

    @property
    def place(self) -> str:
        return name_of(self.arguments())

    def arguments(self, netloc: str = "") -> dict[str, Any]:
        """Return redis-py's arguments of a connection, `connection_class` among them; `netloc` in place of the URL's."""
        connections: Any = driver().connection
        of_url, rest = urlsplit(self.url).netloc, self.url.partition("://")[2]
        scheme = "rediss" if self.tls else self.scheme.removesuffix("+cluster")
        try:
            arguments: dict[str, Any] = connections.parse_url(f"{scheme}://{netloc or of_url}{rest[len(of_url) :]}")
        except ValueError:  # its text may have the URL, and so the password
            raise ConfigError(
                f"the URL of {self.subject()} cannot be read: write redis://user:password@host:port/0"
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
        # Protocol 2 has no messages between the answers.
        return {**arguments, "protocol": 2, "decode_responses": False}


def name_of(arguments: Mapping[str, Any]) -> str:
    """Return a server's address for messages, without user and password."""
    if "path" in arguments:
        return str(arguments["path"])
    place = f"{arguments.get('host', 'localhost')}:{arguments.get('port', DEFAULT_PORT)}"
    return f"{place}/{arguments['db']}" if arguments.get("db") else place


def is_transient(error: Exception) -> bool:
    """Whether the same call to the same server may succeed a moment later, on a new connection."""
    errors, code = driver().exceptions, code_of(error)
    if code in _STRANGER:
        return False
    return isinstance(error, (errors.ConnectionError, errors.TimeoutError)) or code in _TRANSIENT


def error_text(doing: str, place: str, error: Exception, advice: Mapping[str, str], default: str = "") -> str:
    """Say what was tried where, what was found, what to do: by `advice` for its code, or what holds for all, or `default`."""
    code, text = code_of(error), str(error).rstrip(".")
    found = text if not code or code in text else f"{code} {text}"
    known = advice.get(code) or _ADVICE.get(code) or default
    return f"{doing} on Redis {place}: {found}" + (f"; {known}" if known else "")


def code_of(error: Exception) -> str:
    """Return the code of an error; empty if it has none, as if nothing answered."""
    errors = driver().exceptions
    for known, code in (
        (errors.AuthenticationWrongNumberOfArgsError, "WRONGPASS"),
        (errors.BusyLoadingError, "LOADING"),
        (errors.NoPermissionError, "NOPERM"),
        (errors.OutOfMemoryError, "OOM"),
        (errors.ReadOnlyError, "READONLY"),
        (errors.TryAgainError, "TRYAGAIN"),
        (errors.MasterDownError, "MASTERDOWN"),
        (errors.ClusterDownError, "CLUSTERDOWN"),
        (errors.ClusterCrossSlotError, "CROSSSLOT"),
        (errors.MovedError, "MOVED"),
        (errors.AskError, "ASK"),
    ):
        if isinstance(error, known):
            return code
    if isinstance(error, errors.AuthenticationError):
        return "NOAUTH" if "required" in str(error).lower() else "WRONGPASS"
    match = _CODE.search(str(error)) if isinstance(error, errors.ResponseError) else None
    return match[1] if match is not None else ""
