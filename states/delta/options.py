"""The options of a Delta state, and where its two tables are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple
from urllib.parse import unquote, urlsplit

from states.delta.local_folder import TableFolder
from trident.errors import ConfigError
from trident.redaction import redacted
from trident.storekit import Expiring, whole


@dataclass(frozen=True, repr=False, kw_only=True)
class DeltaOptions(Expiring):
    """Options of a Delta state; `ttl_s` and `allow_short_ttl` are in `Expiring`. A state whose rows expire stays in memory.

    Attributes
    ----------
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
    retained_versions
        At most so many versions of the changes stay (a few of them are compactions), in
        whole checkpoints, however young: so the files of a state that commits often stay few. Batches of the past can be read
        (`at`) as long as their versions are there, and a Spark query of `to_dataframe` may take as long as so many
        commits. None: only the hours count.
    checkpoint_interval
        Commits between two checkpoints of the log; bounds what is read to open the table. Other programs that write the
        table use the number that was set when it was created.
    max_keys_in_memory, max_mb_in_memory
        A writer keeps the newest values in memory up to so many keys, and about so many megabytes. A state that has
        grown beyond either is held in files from then on: memory then holds what changed since they were written.
    publish_every_s
        The table at the path shows a committed batch after at most so many seconds, and when the state is closed. Writing it
        takes at most a fortieth of the time, so it comes later if the state is large.
    published_hours
        Old files of the table at the path are deleted after so many hours: no query on it may take longer.
    fsync
        Sync each commit before it is done (tables on local disks only). Without it a commit
        survives the end of the process, not a power failure.
    """

    store: ClassVar[str] = "Delta"

    compact_after_commits: int = whole(64, 1)
    background_maintenance: bool = True
    storage_options: Mapping[str, str] | None = None
    vacuum_after_hours: int | None = whole(24, 1)
    log_retention_hours: int = whole(24, 1)
    retained_versions: int | None = whole(1000, 10)
    checkpoint_interval: int = whole(32, 1)
    max_keys_in_memory: int = whole(1_000_000, 1)
    max_mb_in_memory: int = whole(512, 1)
    publish_every_s: int = whole(5, 1)
    published_hours: int = whole(1, 1)
    fsync: bool = True


KEEPING = ("vacuum_after_hours", "retained_versions", "published_hours")
"""The options that say how much of the past stays; what `log_retention_hours` says is in the table itself."""

AT_PATH = ""
CHANGES = "_trident/changes"  # no reader and no VACUUM of the table at the path looks into `_…`


class Place(NamedTuple):
    """Where delta-rs finds one table of a state, and its folder on this machine; None on an object store."""

    uri: str
    folder: TableFolder | None

    @staticmethod
    def of(path: str, inside: str, fsync: bool) -> Place:
        local = local_path(path)
        if local is None:
            return Place("/".join([path.rstrip("/"), inside]) if inside else path, None)
        return Place(str(local / inside), TableFolder(local / inside, fsync))


def local_path(path: str) -> Path | None:
    """Return the folder that a path or `file://` URL names; None for the URL of an object store."""
    if re.match(r"[a-z][a-z0-9+.-]+:/(?!/)", path):
        raise ConfigError(
            f"Delta table {redacted(path)!r} looks like a URL without its second slash; give URLs as text"
        )
    if path.startswith("file://"):
        return Path(unquote(urlsplit(path).path))
    return None if "://" in path else Path(path)
