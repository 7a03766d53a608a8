"""The address of something in ZooKeeper: `zookeeper://host:2181,host2:2181/path`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trident.errors import ConfigError

_BEGIN = re.compile(r"zookeeper:/", re.IGNORECASE)
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")
_PORT = 2181
_LAST_PORT = 65535
_LIKE = "zookeeper://host1:2181,host2:2181/trident/word-count"


def is_zookeeper(address: str) -> bool:
    """Whether this is meant as an address in ZooKeeper."""
    return _BEGIN.match(address) is not None


@dataclass(frozen=True)
class ZooKeeperAddress:
    """A path in a ZooKeeper.

    `hosts`: the servers, `host:port` with commas between them.
    `path`: where it is: begins with a slash, ends without one.
    """

    hosts: str
    path: str

    @staticmethod
    def of(address: str, what: str = "log_dir") -> ZooKeeperAddress:
        """Read an address; `ConfigError` naming the setting `what` if it is none."""
        # A slash may have been lost where the text was taken for a path.
        rest = _BEGIN.sub("", address, count=1).removeprefix("/")
        servers, slash, path = rest.partition("/")
        hosts = [each.strip() for each in servers.split(",")]
        for host in hosts:
            _check_host(host, address, what)
        path = "/" + path.strip("/")
        if not slash or path == "/":
            raise ConfigError(f"{what}={address!r}: name a path after the servers, as in {_LIKE}")
        if any(part in ("", ".", "..") for part in path[1:].split("/")) or "\0" in path:
            raise ConfigError(f"{what}={address!r}: a path in ZooKeeper has no empty part, and no part that is . or ..")
        if path.split("/")[1] == "zookeeper":
            raise ConfigError(f"{what}={address!r}: ZooKeeper keeps /zookeeper for itself; name another path")
        return ZooKeeperAddress(",".join(host if _has_port(host) else f"{host}:{_PORT}" for host in hosts), path)

    def __str__(self) -> str:
        return f"zookeeper://{self.hosts}{self.path}"


def _check_host(host: str, address: str, what: str) -> None:
    if "@" in host:
        raise ConfigError(
            f"{what}: an address of ZooKeeper must have no user or password in it, as it is shown in logs. Give them in "
            "the environment variable TRIDENT_ZOOKEEPER_AUTH"
        )
    match = _HOST.fullmatch(host)
    if match is None or (match[1] is not None and not 0 < int(match[1]) <= _LAST_PORT):
        raise ConfigError(f"{what}={address!r}: {host!r} is not a server; give HOST:PORT, as in {_LIKE}")


def _has_port(host: str) -> bool:
    match = _HOST.fullmatch(host)
    return match is not None and match[1] is not None
