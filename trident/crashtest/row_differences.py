"""Compares two tables as multisets of rows, or of the rows of each key."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trident.errors import ConfigError

__all__ = ["Comparison", "RowDifference"]

_DIGITS = ".12g"  # the order in which a sum of doubles was added up is no difference


@dataclass(frozen=True)
class RowDifference:
    """A key whose rows differ, and what was expected and found of it, as text."""

    key: str
    expected: str
    found: str


@dataclass(frozen=True)
class Comparison:
    """How two tables are compared.

    Parameters
    ----------
    key
        The columns of the key; none: the whole row is one, and its copies are counted.
    ignored
        Columns that differ from run to run, such as the time of writing.
    """

    key: Sequence[str] = ()
    ignored: Sequence[str] = ()

    def differences(
        self, expected: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]
    ) -> list[RowDifference]:
        """Return the keys that differ, in order.

        Raises
        ------
        ConfigError
            A column of the key is not in the table.
        """
        one, other = self._grouped(expected), self._grouped(found)
        return [
            RowDifference(key, self._shown(one[key]), self._shown(other[key]))
            for key in sorted({*one, *other})
            if one[key] != other[key]
        ]

    def _grouped(self, rows: Sequence[Mapping[str, Any]]) -> defaultdict[str, Counter[str]]:
        grouped: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for row in rows:
            if missing := [name for name in self.key if name not in row]:
                raise ConfigError(f"--key {missing[0]} is not a column of the table; it has {', '.join(row)}")
            kept = {name: value for name, value in row.items() if name not in self.ignored}
            names = self.key or list(kept)
            rest = {name: value for name, value in kept.items() if name not in names}
            grouped[_text({name: row[name] for name in names}, bare=len(self.key) == 1)][_text(rest)] += 1
        return grouped

    def _shown(self, rows: Counter[str]) -> str:
        if not rows:
            return "no row"
        if not self.key or set(rows) == {""}:
            return f"{rows.total()} ×"
        return "; ".join(row if count == 1 else f"{count} × {row}" for row, count in sorted(rows.items()))


def _text(row: Mapping[str, Any], bare: bool = False) -> str:
    """Return columns as text; `bare`: of the only one without its name."""
    values = {name: _value(row[name]) for name in sorted(row)}
    return next(iter(values.values())) if bare else ", ".join(f"{name}={value}" for name, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, float):
        return format(value, _DIGITS)
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, sort_keys=True, default=str)
    return "NULL" if value is None else str(value)
