"""The token of a cluster: what clients, supervisors and drivers have to know to change anything."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from trident.cluster.client.cluster_token import TOKEN_FILE, find_token
from trident.cluster_errors import NotAllowed

__all__ = ["TOKEN_VARIABLE", "own_token"]

TOKEN_VARIABLE = "TRIDENT_TOKEN"
"""The variable in which drivers find it."""


def own_token(given: str | None, folder: Path | None) -> str:
    """Return the token for a daemon: that which was given, or that in the folder of the cluster, which gets one if it has none.

    Raises
    ------
    NotAllowed
        There is no folder and no token was given.
    """
    found = find_token(folder, given)
    if found is not None:
        return found
    if folder is None:
        raise NotAllowed(
            f"a cluster in ZooKeeper needs a token that all of its daemons and clients know. Make one, as with `openssl rand "
            f"-hex 16`, and put it into the environment as {TOKEN_VARIABLE} (or --token)"
        )
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f"{TOKEN_FILE}.{secrets.token_hex(4)}.tmp"
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        opened.write(secrets.token_hex(16))
    with contextlib.suppress(FileExistsError):  # another daemon may make it just now
        os.link(aside, folder / TOKEN_FILE)  # whole, and only once
    aside.unlink()
    return (folder / TOKEN_FILE).read_text(encoding="utf-8").strip()
