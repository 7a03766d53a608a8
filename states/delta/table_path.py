"""Where a table is: a folder of this machine, or an object store."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trident.errors import ConfigError
from trident.redaction import redacted

__all__ = ["local_path"]


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
