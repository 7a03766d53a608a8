"""The addresses of logs and of clusters on servers; one without a scheme is a folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from trident.errors import ConfigError
from trident.redaction import redacted

# A slash may have been lost where the text was taken for a path.
_ZOOKEEPER = re.compile(r"zookeeper:/", re.IGNORECASE)
_POSTGRES = re.compile(r"postgres(?:ql)?:/{1,2}", re.IGNORECASE)
_OBJECTS = re.compile(r"(s3|gs|az|abfss):/{1,2}", re.IGNORECASE)
_ZOOKEEPER_LIKE = "zookeeper://host1:2181,host2:2181/trident/word-count"
_POSTGRES_LIKE = "postgresql://USER@HOST/DATABASE?topology=NAME"
_NAMED_BY = {"log_dir": "topology", "cluster": "cluster"}
_OBJECTS_LIKE = "s3://BUCKET/PREFIX"
LIKE = f"zookeeper://HOST:PORT/PATH, {_POSTGRES_LIKE}, {_OBJECTS_LIKE} (gs, az, abfss)"
"""The addresses that there are, for messages."""

_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # one slash, because `Path` makes one of two
_NO_PORT = re.compile(r":(?!\d*(?:,|$))")
_PORT, _LAST_PORT = 2181, 65535


def is_url(path: str) -> bool:
    """Whether a path begins with a scheme, so that it names no folder of this machine."""
    return _URL.match(path) is not None


def is_log_address(log_dir: str) -> bool:
    return is_zookeeper(log_dir) or is_postgres(log_dir) or is_in_objects(log_dir)


def is_zookeeper(address: str) -> bool:
    return _ZOOKEEPER.match(address) is not None


def is_in_objects(address: str) -> bool:
    return _OBJECTS.match(address) is not None


def is_postgres(address: str) -> bool:
    return _POSTGRES.match(address) is not None


def log_address_of(address: str) -> ZooKeeperAddress | PostgresAddress | ObjectAddress:
    """Read the address of a log on a server; `ConfigError` if it is none."""
    if is_zookeeper(address):
        return ZooKeeperAddress.of(address)
    return PostgresAddress.of(address) if is_postgres(address) else ObjectAddress.of(address)


class Database(NamedTuple):
    """A database of PostgreSQL as it is reached: two connections that agree in it have the same tables and rights."""

    servers: str  # hosts and ports, as they are written
    name: str | None  # None: libpq's default
    user: str | None
    options: str | None  # of the session, such as a search path
    timeout_s: float = 0.0  # of a statement of a state; it does not distinguish databases

    @staticmethod
    def of(url: str, user: str | None = None, timeout_s: float = 0.0) -> Database:
        parts = urlsplit(_POSTGRES.sub("postgresql://", url, count=1))
        query = dict(parse_qsl(parts.query))
        hosts = parts.netloc.rpartition("@")[2] or query.get("host", "")
        servers = ",".join(host if re.search(r":\d+$", host) else f"{host}:5432" for host in hosts.split(","))
        named = unquote(parts.path.removeprefix("/")) or query.get("dbname")
        user = user or unquote(parts.netloc.rpartition("@")[0].partition(":")[0]) or query.get("user")
        return Database(servers, named, user, query.get("options"), timeout_s)

    def differs_from(self, other: Database) -> str:
        """Say in what this database differs from another one; empty if it is the same."""
        words = ("server", "database", "user", "options")
        pairs = zip(words, self[:4], other[:4], strict=True)
        return "; ".join(
            f"{word} {mine or 'unsaid'}, not {its or 'unsaid'}" for word, mine, its in pairs if mine != its
        )


@dataclass(frozen=True)
class ZooKeeperAddress:
    """A path in a ZooKeeper, which begins with a slash and ends without one."""

    hosts: str  # host:port, with commas between
    path: str

    @staticmethod
    def of(address: str, what: str = "log_dir") -> ZooKeeperAddress:
        """Read an address; `ConfigError` naming the setting `what` if it is none."""
        rest = _ZOOKEEPER.sub("", address, count=1).removeprefix("/")
        servers, slash, path = rest.partition("/")
        hosts = ",".join(_server(each.strip(), address, what) for each in servers.split(","))
        path = "/" + path.strip("/")
        if not slash or path == "/":
            raise ConfigError(f"{what}={address!r}: name a path after the servers, as in {_ZOOKEEPER_LIKE}")
        if any(part in ("", ".", "..") for part in path[1:].split("/")) or "\0" in path:
            raise ConfigError(f"{what}={address!r}: a path in ZooKeeper has no empty part, and no part that is . or ..")
        if path.split("/")[1] == "zookeeper":
            raise ConfigError(f"{what}={address!r}: ZooKeeper keeps /zookeeper for itself; name another path")
        return ZooKeeperAddress(hosts, path)

    def log_below(self, name: str) -> str:
        """Return the address of a topology's log, if a cluster is here."""
        return f"{self}/transactional/{name}"

    def __str__(self) -> str:
        return f"zookeeper://{self.hosts}{self.path}"


def _server(host: str, address: str, what: str) -> str:
    if "@" in host:
        raise ConfigError(
            f"{what}: an address of ZooKeeper must have no user or password in it, as it is shown in logs. Give them in "
            "the environment variable TRIDENT_ZOOKEEPER_AUTH"
        )
    match = _HOST.fullmatch(host)
    if match is None or (match[1] is not None and not 0 < int(match[1]) <= _LAST_PORT):
        raise ConfigError(
            f"{what}={redacted(address)!r}: {host!r} is not a server; give HOST:PORT, as in {_ZOOKEEPER_LIKE}"
        )
    return host if match[1] else f"{host}:{_PORT}"


def _split(url: str, address: str, what: str, like: str) -> SplitResult:
    """Return the parts of a URL, which ends with its query; `ConfigError` if it is none."""
    try:
        return urlsplit(url, allow_fragments=False)
    except ValueError as error:
        raise ConfigError(f"{what}={redacted(address)!r}: {error}; give an address as {like}") from error


@dataclass(frozen=True)
class PostgresAddress:
    """A log, or a cluster, in a database."""

    url: str  # the database, as libpq reads it
    name: str  # which of the logs, or clusters, in it
    key: str = "topology"  # what names it in the address: or `cluster`

    @staticmethod
    def of(address: str, what: str = "log_dir") -> PostgresAddress:
        """Read an address; `ConfigError` naming the setting `what` if it is none."""
        key = _NAMED_BY[what]
        like = _POSTGRES_LIKE.replace("topology", key)
        url = _split(_POSTGRES.sub("postgresql://", address, count=1), address, what, like)
        query = parse_qsl(url.query, keep_blank_values=True)
        # A slash that is not quoted ends user and password too early.
        has_password = url.password is not None or ("@" in url.path and _NO_PORT.search(url.netloc))
        if has_password or any(name in ("password", "sslpassword") for name, _ in query):
            raise ConfigError(
                f"{what}: an address in PostgreSQL must have no password in it, because it is shown in logs. "
                "Give it in PGPASSWORD, or in the file that PGPASSFILE names"
            )
        names = [value for name, value in query if name == key]
        if len(names) != 1 or not names[0] or "\0" in names[0]:
            raise ConfigError(f"{what}={redacted(address)!r}: name the {what.removesuffix('_dir')}, as in {like}")
        rest = urlencode([one for one in query if one[0] != key], quote_via=quote)
        # Not `geturl`, which drops the slashes before no host: that is the socket of this machine.
        return PostgresAddress(f"postgresql://{url.netloc}{url.path}{f'?{rest}' if rest else ''}", names[0], key)

    def log_below(self, name: str) -> str:
        """Return the address of a topology's log, if a cluster is here."""
        return str(PostgresAddress(self.url, f"{self.name}/transactional/{name}"))

    def __str__(self) -> str:
        return f"{self.url}{'&' if '?' in self.url else '?'}{self.key}={quote(self.name)}"


@dataclass(frozen=True)
class ObjectAddress:
    """A log, or a cluster, below a prefix of an object store."""

    url: str

    @staticmethod
    def of(address: str, what: str = "log_dir") -> ObjectAddress:
        """Read an address; `ConfigError` naming the setting `what` if it is none."""
        text = _OBJECTS.sub(lambda found: f"{found[1].lower()}://", address, count=1)
        url = _split(text, address, what, _OBJECTS_LIKE)
        if url.password is not None or (url.username is not None and url.scheme != "abfss") or url.query or "#" in text:
            raise ConfigError(
                f"{what}: an address in an object store must have neither credentials nor options in it, because it is "
                "shown in logs. Give them in the environment (AWS_…, GOOGLE_…, AZURE_…)"
            )
        parts = url.path.strip("/").split("/")
        if not url.netloc or any(part in ("", ".", "..") for part in parts):
            raise ConfigError(
                f"{what}={address!r}: name a bucket and a prefix that no other {_NAMED_BY[what]} has, as in {_OBJECTS_LIKE}"
            )
        return ObjectAddress(f"{url.scheme}://{url.netloc}/{'/'.join(parts)}")

    def log_below(self, name: str) -> str:
        """Return the address of a topology's log, if a cluster is here."""
        return f"{self}/transactional/{name}"

    def __str__(self) -> str:
        return self.url
