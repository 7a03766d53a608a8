"""What came of the rows: a table in Markdown, records as CSV, and a picture of figures over time."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tests.proof.proof_row import Record

_HEAD = ("row", "what", "wanted", "done", "wrong", "seconds", "again")
_WIDTH, _HEIGHT, _ACROSS = 340, 130, 2


def table(records: Sequence[Record]) -> str:
    lines = [_HEAD, ["---"] * len(_HEAD)]
    for record in records:
        row = record.row
        cells = [row.name, row.what, _numbers(row.wanted) or "all", _done(record), f"{len(record.wrong)}"]
        lines.append([*cells, f"{record.seconds:.0f}", f"`{record.command}`"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _done(record: Record) -> str:
    if not record.counts:
        return "not here"
    done = _numbers({what: number for what, number in record.counts.items() if what != "wrong"})
    return done if record.is_complete else f"{done} (cut short)"


def _numbers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {what}" for what, number in counts.items())


def save(records: Sequence[Record], out: Path, about: Mapping[str, str]) -> None:
    """Append the records to files in a folder, and draw the samples.

    `about`: what is the same for all, such as date and commit.
    """
    out.mkdir(parents=True, exist_ok=True)
    for record in records:
        same: dict[str, Any] = {**about, "row": record.row.name, "seed": record.seed}
        counts = {"done": _done(record), "wrong": len(record.wrong), "seconds": round(record.seconds)}
        _append(out / "rows.csv", {**same, **counts, "command": record.command})
        for group, counted in record.groups.items():
            for what, number in counted.items():
                _append(out / "groups.csv", {**same, "group": group, "what": what, "number": number})
        if record.samples:
            name = out / f"{record.row.name.lower()}-samples"
            with name.with_suffix(".csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, list(record.samples[0]))
                writer.writeheader()
                writer.writerows(record.samples)
            name.with_suffix(".svg").write_text(picture(record.samples, "seconds"), encoding="utf-8")
        if record.wrong:
            with (out / "wrong.txt").open("a", encoding="utf-8") as file:
                file.write(f"{record.command}\n" + "\n".join(record.wrong) + "\n")


def _append(path: Path, line: Mapping[str, object]) -> None:
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(line))
        if is_new:
            writer.writeheader()
        writer.writerow(line)


def picture(samples: Sequence[Mapping[str, float]], across: str) -> str:
    """Draw each figure over `across` as a small line chart from zero up, with its name and its last value, as SVG."""
    names = [name for name in samples[0] if name != across]
    last = max(sample[across] for sample in samples) or 1.0
    rows = -(-len(names) // _ACROSS)
    charts = []
    for at, name in enumerate(names):
        left, top = at % _ACROSS * _WIDTH, at // _ACROSS * _HEIGHT
        most = max(sample[name] for sample in samples) or 1.0
        points = " ".join(
            f"{left + 10 + sample[across] / last * (_WIDTH - 30):.1f},{top + _HEIGHT - 15 - sample[name] / most * 80:.1f}"
            for sample in samples
        )
        charts.append(
            f'<text x="{left + 10}" y="{top + 20}">{escape(name)}: {samples[-1][name]:,.1f} (most {most:,.1f})</text>'
            f'<path d="M{left + 10},{top + _HEIGHT - 15}h{_WIDTH - 30}" stroke="#bbb"/>'
            f'<polyline points="{points}" fill="none" stroke="#1f6feb" stroke-width="1.5"/>'
        )
    size = f'width="{_ACROSS * _WIDTH}" height="{rows * _HEIGHT}"'
    style = '<rect width="100%" height="100%" fill="#fff"/><g font-family="sans-serif" font-size="12" fill="#333">'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{"".join(charts)}</g></svg>\n'
