"""What notebooks show: tables and texts as HTML, and a running topology, again and again. Nothing here imports IPython."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from typing import Any

from trident.naming import amount, counted
from trident.roles import has

LONGEST = 200  # characters of one value
_CELL = "padding:2px 8px;vertical-align:top;text-align:"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """Return rows as a table; a number stands at the right. `caption` is a line of text under it."""
    lines = [_row("th", head)] if head else []
    lines += [_row("td", row) for row in rows]
    under = f'<div style="opacity:0.7">{escape(caption)}</div>' if caption else ""
    return f'<div><table style="border-collapse:collapse">{"".join(lines)}</table>{under}</div>'


def pre_block(text: str) -> str:
    return f'<pre style="overflow-x:auto">{escape(text)}</pre>'


def short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _row(tag: str, cells: Sequence[Any]) -> str:
    sides = ("right" if isinstance(each, int | float) and not isinstance(each, bool) else "left" for each in cells)
    drawn = (
        f'<{tag} style="{_CELL}{side}">{escape(short(each))}</{tag}>' for each, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{''.join(drawn)}</tr>"


@dataclass(frozen=True)
class RunningGlance:
    """A running topology at one moment; `states`: where each is committed."""

    name: str
    status: Mapping[str, Any]
    last: Mapping[str, Any] | None
    seconds: float
    states: Mapping[str, str]

    def __str__(self) -> str:
        parts = [f"{self.name}: {self.status['message']}", f"batch {self.status['txid']}", self._throughput()]
        lags = [f"{source} {lag}" for source, lag in self._lags().items() if lag != "not known"]
        return ", ".join([*parts, *(["lag " + ", ".join(lags)] if lags else []), *self._trouble().values()])

    __repr__ = __str__  # what a notebook stores beside the table

    def _repr_html_(self) -> str:
        rows = {
            "topology": self.name,
            "state": self.status["message"],
            "last batch": self._batch(),
            "throughput": self._throughput(),
            **{f"lag of {source}": lag for source, lag in self._lags().items()},
            **{f"state {name}": f"{self._keys(name)}committed by the {where}" for name, where in self.states.items()},
            **self._trouble(),
        }
        return table((), rows.items())

    def _batch(self) -> str:
        if self.last is None:
            return f"{self.status['txid']}, none in this run"
        took, where = self.last["durationMs"]["total"], self.last["engine"].replace("_", " ")
        return f"{self.last['batchId']}, {counted(self.last['numInputRows'], 'tuple')} in {took:,.1f} ms ({where})"

    def _throughput(self) -> str:
        tuples = counted(self.status["tuples"], "tuple")
        if not self.seconds:
            return tuples
        rate = self.status["tuples"] / self.seconds
        return f"{tuples}, {rate:,.{0 if rate >= 10 else 1}f} a second"

    def _lags(self) -> dict[str, str]:
        lags = {each["description"]: each["lag"] for each in self.status["sources"]}
        return {
            source: "not known" if lag is None else amount(lag["amount"], lag["unit"]) for source, lag in lags.items()
        }

    def _keys(self, state: str) -> str:
        updated = None if self.last is None else self.last["stateKeysUpdated"].get(state)
        return "" if updated is None else f"{counted(updated, 'key')} in the last batch, "

    def _trouble(self) -> dict[str, str]:
        failures, left_out, waiting = (self.status[key] for key in ("failures", "leftOut", "deadLetters"))
        found = {}
        if failures:
            found["failures"] = f"{counted(failures, 'failed attempt')}, the last one: {self.status['lastFailure']}"
        if left_out or waiting:
            found["dead letters"] = f"{counted(waiting, 'dead letter')} waiting, {left_out:,} left out in this run"
        return found


def show(now: Callable[[], RunningGlance], is_over: Callable[[], bool]) -> None:
    """Show what `now` returns until `is_over`, which waits between two looks, or until Ctrl-C; then once more."""
    update = _in_place() or _in_lines()
    with suppress(KeyboardInterrupt):
        update(now())
        while not is_over():
            update(now())
    update(now())


def _in_place() -> Callable[[RunningGlance], None] | None:
    """Return what brings one display up to date, None where this is no notebook."""
    # A notebook has loaded IPython by itself, and runs in its kernel; a terminal cannot change what it has printed.
    ipython, module = sys.modules.get("IPython"), sys.modules.get("IPython.display")
    shell = None if ipython is None else ipython.get_ipython()
    if module is None or not has(shell, "kernel"):
        return None
    handles: list[Any] = []

    def update(shown: RunningGlance) -> None:
        if handles:
            handles[0].update(shown)
        else:
            handles.append(module.display(shown, display_id=True))

    return update


def _in_lines() -> Callable[[RunningGlance], None]:
    last = ""

    def update(shown: RunningGlance) -> None:
        nonlocal last
        if (line := str(shown)) != last:
            last = line
            print(line, flush=True)  # noqa: T201

    return update
