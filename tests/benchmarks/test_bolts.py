"""The benchmark of bolts gives figures; whether they are as wanted is not asked here."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks import bolts


@pytest.mark.long
@pytest.mark.slow
def test_rows_in_this_process_give_figures(capsys: pytest.CaptureFixture[str]) -> None:
    bolts.main(["tracked", "latency", "killed", "cost", "--engine", "local", "--seconds", "0.5", "--warm", "0.5"])
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
