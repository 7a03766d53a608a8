"""The token of a cluster: where it is stored, and what a request must carry to change something."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from trident.cluster_errors import ClusterError, NotAllowed

TOKEN_FILE = "token"
"""The name of the file in the folder of a cluster that runs on this machine; only its user may read it."""


def find_token(folder: Path | None, given: str | None) -> str | None:
    """Return the token that was given, else that in the folder of the cluster; None if there is none.

    Raises `ClusterError`: the file is there and cannot be read: it belongs to another user.
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
            f"the token of the cluster cannot be read: {error}. Only the user who started it may; others give it with --token"
        ) from error


TOKEN_VARIABLE = "TRIDENT_TOKEN"
"""The variable in which drivers find it."""


def own_token(given: str | None, folder: Path | None) -> str:
    """Return the token for a daemon: that which was given, or that in the folder of the cluster, which gets one if it has none.

    Raises `NotAllowed`: there is no folder and no token was given.
    """
    token = find_token(folder, given)
    if token is not None:
        return token
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
