"""The options of a state in Cassandra, checked when they are given; nothing here needs the driver."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trident.errors import ConfigError
from trident.redaction import SECRET, Redacted, redacted
from trident.state.encoding.serializers import Serializer
from trident.state.interfaces import REPLAY_WINDOW_S
from trident.state.snapshottable import DEFAULT_SNAPSHOT_KEY

__all__ = ["CassandraOptions", "table_name"]

_TWENTY_YEARS_S = 20 * 365 * 86_400  # what Cassandra itself accepts
_NAME = re.compile(r"[A-Za-z0-9_]{1,48}")
_MAX_NAME = 48
_READ_LEVELS = ("ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_ONE", "LOCAL_QUORUM")
_WRITE_LEVELS = (*_READ_LEVELS, "EACH_QUORUM")


@dataclass(frozen=True, repr=False)
class CassandraOptions(Redacted):
    """Where the cluster is and how a state is kept in it.

    Attributes
    ----------
    contact_points
        Nodes that are asked first; they tell of the others.
    port
        Of every node.
    keyspace
        Must exist, unless `replication` is given.
    table
        None: the names of the topology and the state, as one word. Several states may share a table.
    create_table
        Make the table if it is absent.
    replication
        With it an absent keyspace is made: a number of copies, or copies by data centre.
    buckets
        How many Cassandra partitions the keys of a state are spread over. Fixed when the table is made; another number
        is refused later.
    read_consistency, write_consistency
        Names of consistency levels. Together they must reach more copies than there are.
    allow_weak_consistency
        Accept levels that may read old values; the state is then not exact after the loss of a node.
    local_dc
        The data centre whose nodes are asked; None: that of the contact points.
    user, password
        Of an account; None where the cluster asks for none.
    tls, tls_ca, tls_certificate, tls_key, tls_check_hostname
        `tls=True` encrypts connections; paths of PEM files: who signs the servers' certificates (None: whom the system
        trusts), and this client's own certificate and key.
    connect_timeout_s, timeout_s
        For making a connection, and for one request.
    max_concurrency
        Requests of one state partition that are under way at once.
    rows_per_batch, rows_per_read
        Keys in one write and in one read, all of one bucket; at most 100. Lower `rows_per_read` for values above 100 kB.
    ttl_s
        Seconds after its last write at which a key is forgotten; 0: never. Below one day it may forget keys whose
        batch is still to be replayed, and is refused without `allow_short_ttl`.
    allow_short_ttl
        See `ttl_s`.
    protocol_version
        Of the native protocol; 4 is known to every server since 2.2, 5 since 4.0.
    cache
        Entries of a partition that are remembered between commits; 0: none.
    snapshot_key
        Key of the single value of an ungrouped aggregate.
    serializer
        `"codec"` keeps every type; `"json"` is for tables that other programs read; or one of your own.
    num_partitions
        Writers of the state; None: as the topology asks.
    """

    contact_points: tuple[str, ...] = ("127.0.0.1",)
    port: int = 9042
    keyspace: str = "trident"
    table: str | None = None
    create_table: bool = True
    replication: int | Mapping[str, int] | None = None
    buckets: int = 128
    read_consistency: str = "QUORUM"
    write_consistency: str = "QUORUM"
    allow_weak_consistency: bool = False
    local_dc: str | None = None
    user: str | None = None
    password: str | None = field(default=None, metadata=SECRET)
    tls: bool = False
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_check_hostname: bool = True
    connect_timeout_s: float = 10.0
    timeout_s: float = 20.0
    max_concurrency: int = 32
    rows_per_batch: int = 100
    rows_per_read: int = 100
    ttl_s: int = 0
    allow_short_ttl: bool = False
    protocol_version: int = 4
    cache: int = 0
    snapshot_key: str = DEFAULT_SNAPSHOT_KEY
    serializer: str | Serializer = "codec"
    num_partitions: int | None = None

    def __post_init__(self) -> None:
        self._check_names()
        self._check_numbers()
        _check_level("read_consistency", self.read_consistency, _READ_LEVELS)
        _check_level("write_consistency", self.write_consistency, _WRITE_LEVELS)
        if (self.user is None) != (self.password is None):
            raise ConfigError("user and password belong together: give both, or neither")
        if not self.tls and (self.tls_ca or self.tls_certificate or self.tls_key):
            raise ConfigError("tls_ca, tls_certificate or tls_key without tls=True: nothing would be encrypted")
        if 0 < self.ttl_s < REPLAY_WINDOW_S and not self.allow_short_ttl:
            raise ConfigError(
                f"ttl_s={self.ttl_s} is below one day ({REPLAY_WINDOW_S}): a key may be forgotten before its batch is replayed "
                "after a failure. Give a longer one, or accept that with allow_short_ttl=True"
            )

    @staticmethod
    def of(target: str | Sequence[str] | CassandraOptions, options: Mapping[str, Any]) -> CassandraOptions:
        """Return options from contact points (one as text, or several) or from other options, with some replaced."""
        if isinstance(target, CassandraOptions):
            return replace(target, **options)
        points = (target,) if isinstance(target, str) else tuple(target)
        return CassandraOptions(contact_points=points, **options)

    @property
    def connection(self) -> tuple[Any, ...]:
        """What two states must have in common to share a connection."""
        return (
            self.contact_points, self.port, self.local_dc, self.user, self.password, self.tls, self.tls_ca,
            self.tls_certificate, self.tls_key, self.tls_check_hostname, self.connect_timeout_s, self.timeout_s,
            self.protocol_version,
        )  # fmt: skip

    @property
    def address(self) -> str:
        """The contact points and the port, for messages."""
        return f"{','.join(self.contact_points)}:{self.port}"

    def _check_names(self) -> None:
        if not self.contact_points or not all(isinstance(point, str) and point for point in self.contact_points):
            raise ConfigError(f"contact_points={self.contact_points!r}: give the host name or address of a node")
        if any("://" in point or "," in point for point in self.contact_points):
            raise ConfigError(
                f"contact_points={redacted(repr(self.contact_points))}: give host names or addresses in a list, "
                "and the port as port="
            )
        for name, value in (("keyspace", self.keyspace), ("table", self.table)):
            if value is not None and not _NAME.fullmatch(value):
                raise ConfigError(f"{name}={value!r}: Cassandra takes 1 to {_MAX_NAME} letters, digits and underscores")

    def _check_numbers(self) -> None:
        bounds = {
            "port": (1, 65_535),
            "buckets": (1, 100_000),
            "max_concurrency": (1, 1_024),
            "rows_per_batch": (1, 100),
            "rows_per_read": (1, 100),
            "ttl_s": (0, _TWENTY_YEARS_S),
            "protocol_version": (3, 6),
        }
        for name, (lowest, highest) in bounds.items():
            value = getattr(self, name)
            if not isinstance(value, int) or not lowest <= value <= highest:
                raise ConfigError(f"{name}={value!r}: give a whole number from {lowest} to {highest}")
        for name in ("connect_timeout_s", "timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)!r}: give seconds above 0")
        copies = self.replication.values() if isinstance(self.replication, Mapping) else (self.replication,)
        if not copies or any(count is not None and count < 1 for count in copies):
            raise ConfigError(f"replication={self.replication!r}: give at least one copy")


def table_name(prefix: str) -> str:
    """Return the name of a state's table made from its key prefix; long ones are cut and end in a checksum."""
    name = re.sub(r"\W", "_", prefix.lower(), flags=re.ASCII)
    if len(name) <= _MAX_NAME and name:
        return name
    return f"{name[: _MAX_NAME - 9]}_{zlib.crc32(prefix.encode()):08x}"


def _check_level(name: str, level: str, levels: Sequence[str]) -> None:
    if level not in levels:
        raise ConfigError(f"{name}={level!r}: use one of {', '.join(levels)}")
