"""Where the two tables of a state are: what people read is at its path, its changes are in a folder inside.

The name of that folder begins with an underscore, so no reader of the table at the path looks into it, and no VACUUM does.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from states.delta.local_folder import TableFolder
from trident.errors import ConfigError
from trident.redaction import redacted

__all__ = ["AT_PATH", "CHANGES", "Place", "local_path"]

AT_PATH = ""
CHANGES = "_trident/changes"


class Place(NamedTuple):
    """The place of one table of a state.

    Attributes
    ----------
    uri, local, folder
        Where delta-rs finds it; its folder on this machine, None on an object store.
    """

    uri: str
    local: Path | None
    folder: TableFolder | None

    @staticmethod
    def of(path: str, inside: str, fsync: bool) -> Place:
        """Return a place of the state at a path: `AT_PATH` or `CHANGES`."""
        local = local_path(path)
        if local is None:
            return Place("/".join([path.rstrip("/"), inside]) if inside else path, None, None)
        folder = local / inside if inside else local
        return Place(str(folder), folder, TableFolder(folder, fsync))


def local_path(path: str) -> Path | None:
    """Return the folder that a path or `file://` URL names; None for the URL of an object store.

    Raises
    ------
    ConfigError
        A URL that went through `pathlib` and lost a slash.
    """
    if re.match(r"[a-z][a-z0-9+.-]+:/(?!/)", path):
        raise ConfigError(
            f"Delta table {redacted(path)!r} looks like a URL without its second slash; give URLs as text"
        )
    if path.startswith("file://"):
        return Path(unquote(urlsplit(path).path))
    return None if "://" in path else Path(path)
