"""What both kinds of cluster state ask of paths and data, so that what one takes the other takes too."""

from __future__ import annotations

import re

from trident.cluster_errors import ClusterError

__all__ = ["MAX_DATA_BYTES", "above", "checked_data", "checked_path", "checked_way"]

# ZooKeeper ends the connection of who sends more than 1,048,575 bytes, names included.
MAX_DATA_BYTES = 1_000_000

# What ZooKeeper refuses in names: among others all that UTF-16 writes as a pair, such as emoji.
_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


def checked_path(path: str) -> str:
    """Return the path of a node; what is none is an error. The root alone, `/`, is one."""
    if path == "/":
        return path
    names = path.split("/")
    if names[0] or len(names) < 2 or any(name in ("", ".", "..") for name in names[1:]):
        raise ClusterError(
            f"{path!r} is no path of a node: it begins with '/', and no name in it is empty, '.' or '..'"
        )
    refused = _REFUSED.search(path)
    if refused:
        raise ClusterError(f"the path {path!r} has the character {refused[0]!r}, which the name of a node cannot have")
    return path


def checked_way(path: str) -> str:
    """Return the path of a node that may be written: not the root."""
    if checked_path(path) == "/":
        raise ClusterError("the root '/' is no node that can be written or deleted; name one below it")
    return path


def checked_data(path: str, data: bytes) -> bytes:
    """Return the data of a node; too much is an error."""
    if len(data) > MAX_DATA_BYTES:
        raise ClusterError(f"{len(data):,} bytes are too many for the node {path!r}, which holds {MAX_DATA_BYTES:,}")
    return data


def above(path: str) -> str:
    """Return the path of the node above."""
    return path.rpartition("/")[0] or "/"
