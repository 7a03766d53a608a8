"""The token of a cluster: what a request must carry to change something."""

from __future__ import annotations

from pathlib import Path

from trident.cluster_errors import ClusterError

__all__ = ["TOKEN_FILE", "find_token"]

TOKEN_FILE = "token"
"""The name of the file in the folder of a cluster that runs on this machine; only its user may read it."""


def find_token(folder: Path | None, given: str | None) -> str | None:
    """Return the token that was given, else that in the folder of the cluster; None if there is none.

    Raises
    ------
    ClusterError
        The file is there and cannot be read: it belongs to another user.
    """
    if given:
        return given
    if folder is None:
        return None
    try:
        return (folder / TOKEN_FILE).read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ClusterError(
            f"the token of the cluster cannot be read: {error}. Only the user who started it may; another gives it with --token"
        ) from error
