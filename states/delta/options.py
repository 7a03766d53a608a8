"""The options of a Delta state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trident.errors import ConfigError
from trident.redaction import Redacted

__all__ = ["DeltaOptions"]


@dataclass(frozen=True, repr=False)
class DeltaOptions(Redacted):
    """Options of a Delta state.

    Attributes
    ----------
    snapshot_key
        Key of the single value of an ungrouped `persistent_aggregate`.
    compact_after_commits
        After so many commits, each of which leaves a file, merge files and drop rows that later batches replaced.
        Fewer: faster opening and reading by Spark; more: less rewriting.
    background_maintenance
        Merge files, write checkpoints and delete old files in a thread beside the commits; False: in the commit at
        which it is due, for programs that must not have a thread.
    storage_options
        Passed to delta-rs for tables on object stores (credentials, endpoints).
    vacuum_after_hours
        Files that the table no longer refers to are deleted when they are older than this many hours (at least 1: a
        younger file may belong to a running commit); no Spark query on the table may take longer. None never
        deletes. Batches of the past can be read (`at`) as long as their files are there.
    log_retention_hours
        How long single commits stay in `_delta_log` after a checkpoint holds their content, and so how long batches of
        the past can be found. Set when the table is created.
    checkpoint_interval
        Commits between two checkpoints of the log; bounds what is read to open the table. Other programs that write the
        table use the number that was set when it was created.
    fsync
        Sync each commit before it is done (tables on local disks only). Without it a commit
        survives the end of the process, not a power failure.
    """

    snapshot_key: str = "$GLOBAL$"
    compact_after_commits: int = 64
    background_maintenance: bool = True
    storage_options: Mapping[str, str] | None = None
    vacuum_after_hours: int | None = 24
    log_retention_hours: int = 24
    checkpoint_interval: int = 32
    fsync: bool = True

    def __post_init__(self) -> None:
        for name in ("compact_after_commits", "vacuum_after_hours", "log_retention_hours", "checkpoint_interval"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} of a Delta state: give at least 1")
