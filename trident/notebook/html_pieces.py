"""Tables and texts as HTML, for front ends that show what `_repr_html_` returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

LONGEST = 200  # characters of one value
_CELL = "padding:2px 8px;vertical-align:top;text-align:"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """Return rows as a table; a number stands at the right. `caption` is a line of text under it."""
    lines = [_row("th", head)] if head else []
    lines += [_row("td", row) for row in rows]
    under = f'<div style="opacity:0.7">{escape(caption)}</div>' if caption else ""
    return f'<div><table style="border-collapse:collapse">{"".join(lines)}</table>{under}</div>'


def preformatted(text: str) -> str:
    """Return a text as it stands."""
    return f'<pre style="overflow-x:auto">{escape(text)}</pre>'


def short(value: Any) -> str:
    """Return a value as text, cut off behind `LONGEST` characters."""
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _row(tag: str, cells: Sequence[Any]) -> str:
    sides = ("right" if isinstance(each, int | float) and not isinstance(each, bool) else "left" for each in cells)
    drawn = (
        f'<{tag} style="{_CELL}{side}">{escape(short(each))}</{tag}>' for each, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{''.join(drawn)}</tr>"
