"""The Lua scripts of this process, by their digests. `fence.py` and `map.py`, which have them, say what they do."""

from __future__ import annotations

from hashlib import sha1
from typing import Any

__all__ = ["Command", "eval_of", "script"]

Command = tuple[Any, ...]
"""The words of a command."""

_LUA: dict[bytes, bytes] = {}


def script(source: str) -> bytes:
    """Return the digest of a Lua script, by which EVALSHA calls it."""
    text = source.encode()
    digest = sha1(text, usedforsecurity=False).hexdigest().encode()
    _LUA[digest] = text
    return digest


def eval_of(command: Command) -> Command:
    """Return the EVAL that does what an EVALSHA does, for a server that has not seen the script."""
    _evalsha, digest, *rest = command
    return (b"EVAL", _LUA[digest], *rest)
