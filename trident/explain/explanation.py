"""Explanation: the text of `explain`, which notebooks show with its headings."""

from __future__ import annotations

from html import escape
from typing import Any


class Explanation(str):
    """What a topology does, as text; in a notebook it is shown line by line."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        lines = (f"<b>{escape(line)}</b>" if line[:1].strip() else escape(line) for line in self.splitlines())
        return f'<pre style="overflow-x:auto">{chr(10).join(lines)}</pre>'

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the lines where a terminal would show a string in quotes."""
        printer.text(str(self))
