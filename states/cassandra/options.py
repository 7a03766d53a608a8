"""The options of a state in Cassandra, checked when they are given; nothing here needs the driver."""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from trident.errors import ConfigError
from trident.redaction import redacted
from trident.storekit import Account, Expiring, seconds, whole

_NAME = re.compile(r"[A-Za-z0-9_]{1,48}")
_MAX_NAME = 48
ReadLevel = Literal["ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_ONE", "LOCAL_QUORUM"]


@dataclass(frozen=True, repr=False, kw_only=True)
class CassandraOptions(Account, Expiring):
    """The options of a Cassandra state; the other options are in `Account`, `Expiring` and `MapOptions`.

    Attributes
    ----------
    contact_points
        The nodes to contact first; they name the others.
    port
        Of every node.
    keyspace
        Must exist, unless `replication` is given.
    table
        None: the names of the topology and the state, as one word. States with the same columns may share a table.
    layout
        `"binary"`: key and value are bytes. `"columns"`: fields of plain types are columns of their own, which the owner can
        read.
    create_table
        Create the table if it is absent.
    replication
        If given, an absent keyspace is created with it: a number of copies, or copies by data centre.
    buckets
        The number of Cassandra partitions that hold the keys of a state. Fixed when the table is created; another number
        is refused later. A partition should stay below 100 MB: take more for states above 10 GB.
    read_consistency, write_consistency
        Names of consistency levels. Together they must reach more copies than there are.
    allow_weak_consistency
        Accept levels that together reach no more copies than there are, and so may read old values; the state is then not
        exact after the loss of a node.
    local_dc
        The data centre to use; None: the contact points'.
    tls_check_hostname
        False accepts a certificate of another host.
    connect_timeout_s, timeout_s
        For making a connection, and for one request.
    max_concurrency
        Requests of one state partition that are in flight at once.
    rows_per_batch, rows_per_read
        Keys in one write and in one read, all of one bucket; at most 100, in columns at most 10 and 30. Lower
        `rows_per_read` for values above 100 kB.
    protocol_version
        Of the native protocol; 4 is known to every server since 2.2, 5 since 4.0.
    """

    store: ClassVar[str] = "Cassandra"
    remains: ClassVar[str] = (
        "in SSTables until a compaction after gc_grace_seconds of the table (ten days), and in snapshots"
    )
    longest_ttl_s: ClassVar[int | None] = 20 * 365 * 86_400

    contact_points: tuple[str, ...] = field(default=("127.0.0.1",), kw_only=False)
    port: int = whole(9042, 1, 65_535)
    keyspace: str = "trident"
    table: str | None = None
    layout: Literal["binary", "columns"] = "binary"
    create_table: bool = True
    replication: int | Mapping[str, int] | None = None
    buckets: int = whole(128, 1, 100_000)
    read_consistency: ReadLevel = "QUORUM"
    write_consistency: ReadLevel | Literal["EACH_QUORUM"] = "QUORUM"
    allow_weak_consistency: bool = False
    local_dc: str | None = None
    tls_check_hostname: bool = True
    connect_timeout_s: float = seconds(10.0)
    timeout_s: float = seconds(20.0)
    max_concurrency: int = whole(32, 1, 1_024)
    rows_per_batch: int = whole(100, 1, 100)
    rows_per_read: int = whole(100, 1, 100)
    protocol_version: int = whole(4, 3, 6)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_names()
        copies = self.replication.values() if isinstance(self.replication, Mapping) else (self.replication,)
        if not copies or any(one is not None and (type(one) is not int or not 0 < one < 1 << 31) for one in copies):
            raise self.refused("replication", "give at least one copy")
        if (self.user is None) != (self.password is None):
            raise ConfigError("user and password belong together: give both, or neither")

    @classmethod
    def target(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list) else given

    @property
    def connection(self) -> tuple[Any, ...]:
        """The options that two states must have in common to share a connection."""
        return (
            self.contact_points, self.port, self.local_dc, self.user, self.password, self.tls, self.tls_ca_file,
            self.tls_cert_file, self.tls_key_file, self.tls_check_hostname, self.connect_timeout_s, self.timeout_s,
            self.protocol_version,
        )  # fmt: skip

    @property
    def address(self) -> str:
        """The contact points and the port, for messages."""
        return f"{','.join(self.contact_points)}:{self.port}"

    def _check_names(self) -> None:
        if not self.contact_points or not all(self.contact_points):
            raise self.refused("contact_points", "give the host name or address of a node")
        if any("://" in point or "," in point or point.count(":") == 1 for point in self.contact_points):
            raise ConfigError(
                f"contact_points={redacted(repr(self.contact_points))}: give host names or addresses in a list, "
                "and the port as port="
            )
        for name, value in (("keyspace", self.keyspace), ("table", self.table)):
            if value is not None and not _NAME.fullmatch(value):
                raise self.refused(name, f"the server takes 1 to {_MAX_NAME} letters, digits and underscores")


def table_name(prefix: str) -> str:
    """Return the name of a state's table made from its key prefix; long ones are cut and end in a checksum."""
    name = re.sub(r"\W", "_", prefix.lower(), flags=re.ASCII)
    if len(name) <= _MAX_NAME and name:
        return name
    return f"{name[: _MAX_NAME - 9]}_{zlib.crc32(prefix.encode()):08x}"
