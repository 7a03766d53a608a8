"""The pictures of the benchmarks: drawn from their files, and of figures that were measured."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.benchmarks.benchmark_pictures import FIGURES, OUT, from_csv, main
from tests.benchmarks.line_chart import Chart, drawn
from tests.benchmarks.scaling_costs import fitted

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", FIGURES)
def test_a_picture_is_that_of_its_file(name: str) -> None:
    path = OUT / f"{name}.csv"
    assert path.with_suffix(".svg").read_text(encoding="utf-8") == from_csv(path), "draw it: from_csv(path)"


def test_a_line_is_where_its_numbers_are() -> None:
    svg = drawn(Chart("t", "x", "y", "xy"), [("a", 1, 1), ("a", 100, 100), ("b", 10, 10)], ["below"])
    tree = ElementTree.fromstring(svg)
    first, second = (line.get("points", "").split() for line in tree.iter(f"{SVG}polyline"))
    (left, low), (right, high) = (tuple(map(float, point.split(","))) for point in first)
    assert [float(part) for part in second[0].split(",")] == [(left + right) / 2, (low + high) / 2]
    assert [text.text for text in tree.iter(f"{SVG}text")][-3:] == ["a", "b", "below"]


def test_a_linear_cost_is_found() -> None:
    fixed, each = fitted([(1, 5.25), (10, 7.5), (100, 30.0)])
    assert (round(fixed, 6), round(each, 6)) == (5.0, 0.25)


@pytest.mark.long
def test_a_figure_is_measured(tmp_path: Path) -> None:
    assert main(["time", "--quick", "--out", str(tmp_path)]) == 0
    head, command, names, *rows = (tmp_path / "time.csv").read_text().splitlines()
    assert "cores" in head
    assert command == "# python -m tests.benchmarks.scale flat"
    assert names == "series,x,y"
    assert len(rows) > 20
    assert all(row.startswith('"in process, memory",') for row in rows)
