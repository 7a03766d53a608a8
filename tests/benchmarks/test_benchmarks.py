"""The benchmarks give figures; whether they are as wanted is not asked here. Their pictures are those of their files."""

import json
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.benchmarks import benchmark_pictures, bolts
from tests.benchmarks._drawn import DrawnKeys
from tests.benchmarks._flatness import change_of, drawn, run
from tests.benchmarks._measuring import run_rows
from tests.benchmarks.benchmark_pictures import FIGURES, OUT, Chart, from_csv
from tests.benchmarks.scale import ROWS, main
from tests.benchmarks.scaling_costs import fitted
from trident.spout.interfaces import TransactionAttempt

SVG = "{http://www.w3.org/2000/svg}"


def test_each_key_is_drawn_equally_often_whatever_the_parts() -> None:
    spout = DrawnKeys(batches=3, rows=1_000, distinct=500, per_table=70)
    for parallelism in (1, 2, 7):
        counts: Counter[str] = Counter()
        for batch in range(3):
            for part in spout.parts(TransactionAttempt(batch + 1, 1), {"batch": batch}, parallelism):
                for table in spout.emit(part):
                    counts.update(table["word"].to_pylist())
        assert set(counts.values()) == {spout.count_of_each()} == {6}
        assert len(counts) == 500


def test_a_skewed_batch_has_so_many_rows_of_one_key() -> None:
    numbers = DrawnKeys(1, 10_000, 10_000, skew=0.5).numbers(0, 0, 10_000)
    assert 5_000 <= np.count_nonzero(numbers == 0) <= 5_001


def test_a_figure_that_grows_is_told_from_one_that_does_not() -> None:
    saw = [number % 10 for number in range(300)]
    assert change_of([100.0, *[1.0] * 299]) == change_of(saw) == 1.0  # neither the start nor a saw's teeth are growth
    assert change_of([float(number) for number in range(300)]) == pytest.approx(5 / 3, rel=0.01)
    assert change_of([0.0] * 30) == 0.0


def test_a_plot_is_as_high_as_its_largest_value() -> None:
    lines = drawn([1.0, 2.0, 4.0]).splitlines()
    assert [line[-3:].strip() for line in lines[1:4]] == ["█"] * 3
    assert lines[3].startswith("         2.7 │")
    assert lines[-2].endswith("│███")


@pytest.mark.long
@pytest.mark.slow
def test_no_figure_of_a_topology_grows_with_its_batches() -> None:
    samples = run("in_process", "memory", batches=1_500, every=10)[1:]
    assert len(samples) == 149
    for figure in ("python_mb", "log_kb", "log_files"):
        assert change_of([sample[figure] for sample in samples]) <= 1.05, figure


@pytest.mark.long
@pytest.mark.slow
def test_resident_workers_are_sampled_one_by_one() -> None:
    samples = run("spark", "memory", batches=60, every=20, workers="resident")
    assert {"python_mb", "jvm_descriptors", "worker0_mb", "worker1_descriptors"} <= samples[-1].keys()
    assert samples[-1]["batch"] == 60


def test_an_unknown_row_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bigger"])
    assert "no row bigger; there are driver, distinct" in capsys.readouterr().err


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(ROWS.keys() - {"flat", "resident"}))
def test_each_row_can_be_measured(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([name, "--size", "0.002", "--rounds", "1"])
    line = json.loads(capsys.readouterr().out)
    assert "error" not in line


@pytest.mark.long
@pytest.mark.slow
def test_rows_in_this_process_give_figures(capsys: pytest.CaptureFixture[str]) -> None:
    run_rows(
        "",
        bolts.ROWS,
        ["tracked", "latency", "killed", "cost", "--engine", "local", "--seconds", "0.5", "--warm", "0.5"],
    )
    tracked, latency, killed, cost = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert tracked["sentences_per_s"] > 0
    assert tracked["sentences_per_cpu_s"] > 0
    assert 0 < latency["p50_ms"] <= latency["p99_ms"]
    assert len(killed["seconds"]) == 3
    assert max(killed["seconds"]) < 60
    assert set(cost["us_of"]) == {"sentences", "split", "count", "__acker", "encode", "decode"}


@pytest.mark.long
@pytest.mark.slow
def test_an_acker_holds_the_same_for_small_and_large_trees() -> None:
    small, large = bolts.per_root(500, 10), bolts.per_root(500, 2_000)
    assert large == pytest.approx(small, rel=0.05)
    assert large <= 300


@pytest.mark.parametrize("name", FIGURES)
def test_a_picture_is_that_of_its_file(name: str) -> None:
    path = OUT / f"{name}.csv"
    assert path.with_suffix(".svg").read_text(encoding="utf-8") == from_csv(path), "draw it: from_csv(path)"


def test_a_line_is_where_its_numbers_are() -> None:
    svg = benchmark_pictures.drawn(Chart("t", "x", "y", "xy"), [("a", 1, 1), ("a", 100, 100), ("b", 10, 10)], ["below"])
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
    assert benchmark_pictures.main(["time", "--quick", "--out", str(tmp_path)]) == 0
    head, command, names, *rows = (tmp_path / "time.csv").read_text().splitlines()
    assert "cores" in head
    assert command == "# python -m tests.benchmarks.scale flat"
    assert names == "series,x,y"
    assert len(rows) > 20
    assert all(row.startswith('"in process, memory",') for row in rows)
