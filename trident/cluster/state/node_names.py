"""Ids and names of any kind as names of nodes, and back."""

from __future__ import annotations

from urllib.parse import quote, unquote

__all__ = ["node_at", "text_of"]


def node_at(root: str, *texts: str) -> str:
    """Return the path of a node below `root`: one name for each text, whatever characters it has."""
    return "/".join((root, *map(_name, texts)))


def text_of(name: str) -> str:
    """Return the text that a name was made of."""
    return unquote(name)


def _name(text: str) -> str:
    # `.` and `..` are no names, and are not escaped in addresses.
    return text.replace(".", "%2E") if text in (".", "..") else quote(text, safe="")
