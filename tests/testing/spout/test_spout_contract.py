"""The contract as pytest classes, each form of a source once; what the suite says of a source that is wrong itself."""

import io
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.testing.spout.line_spout import LineSource
from trident.errors import ConfigError
from trident.spout import SpoutType
from trident.testing import SpoutContract, SpoutPromise, SpoutReport, Status, spout_suite, spout_table
from trident.testing.__main__ import app


class OpaqueLines(LineSource):
    spout_type = SpoutType.OPAQUE


def opened() -> LineSource:
    return OpaqueLines()


class TestAClassAsSource(SpoutContract):
    source = LineSource


class TestAFunctionAsSource(SpoutContract):
    source = opened


class TestAMethodAsSource(SpoutContract):
    def source(self) -> LineSource:
        return OpaqueLines()


class TestAFixtureAsSource(SpoutContract):
    @pytest.fixture(autouse=True)
    def _open(self) -> None:
        self.source = LineSource


def test_a_contract_without_a_source_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="has no source: set the class attribute"):
        SpoutContract().test_each_row_of_the_source_comes()


def test_what_is_no_source_is_refused() -> None:
    class Wrong(SpoutContract):
        source = dict

    with pytest.raises(ConfigError, match="returned a dict, expected a SpoutSource"):
        Wrong().test_each_row_of_the_source_comes()


def test_the_suite_says_at_once_what_is_wrong_with_the_source_itself() -> None:
    with closing(LineSource()) as source:
        with pytest.raises(TypeError, match="give your subclass of SpoutSource, not an instance"):
            spout_suite(source)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="returned a LineSpout, expected a SpoutSource"):
            spout_suite(lambda: source.spout())


def test_a_source_may_lack_on_itself_what_its_class_can_do() -> None:
    with closing(LineSource()) as source:
        vars(source)["lost"] = None
        assert [source.offers(what) for what in ("lost", "outage", "change")] == [False, True, True]


class Forgetful(LineSource):
    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        return super().fill(numbers, partition)[1:]


def test_a_fill_that_returns_another_number_of_rows_is_told() -> None:
    report = spout_suite(Forgetful, seconds=0, out=io.StringIO())
    assert "fill was given 13 numbers and returned 12 rows" in report.violations[0].detail


def test_a_suite_ends_when_its_time_is_over_and_says_what_it_left_out() -> None:
    report = spout_suite(LineSource, at_most=0.0, out=io.StringIO())
    assert not report.ok
    assert {finding.status for finding in report.findings} == {Status.NOT_RUN, Status.NOT_CLAIMED}
    assert "26 checks were not run" in str(report)


@pytest.mark.slow
def test_the_sources_are_removed() -> None:
    homes = []

    class Noted(LineSource):
        def __init__(self) -> None:
            super().__init__()
            homes.append(self.home)

    spout_suite(Noted, seconds=0, out=io.StringIO())
    assert len(homes) > 27
    assert not [home for home in homes if home.exists()]


@pytest.mark.slow
def test_the_table_has_a_line_for_each_promise_and_a_column_for_each_spout() -> None:
    reports = {name: spout_suite(source, seconds=0, out=io.StringIO()) for name, source in
               (("lines", LineSource), ("opaque", OpaqueLines))}  # fmt: skip
    lines = spout_table({**reports, "none": SpoutReport()}).splitlines()
    assert lines[0].replace("|", "").split() == ["promise", "lines", "opaque", "none", "meaning"]
    assert len(lines) == 2 + len(SpoutPromise)
    (replay,) = [line for line in lines if line.startswith("| replay ")]
    assert [cell.strip() for cell in replay.split("|")][2:5] == ["ok", "not claimed", "–"]


@pytest.mark.slow
def test_the_command_checks_a_source() -> None:
    done = CliRunner().invoke(app, ["tests.testing.spout.line_spout:LineSource", "--seconds", "0", "--seed", "3"])
    assert done.exit_code == 0, done.output
    assert "everything that is claimed holds" in done.output
    assert "seed 3" in done.output


def test_the_command_says_what_to_give_in_place_of_a_spout() -> None:
    done = CliRunner().invoke(
        app, ["tests.testing.spout.line_spout:LineSpout"], env={"COLUMNS": "300", "NO_COLOR": "1"}
    )
    assert done.exit_code == 2
    assert "is a spout; give a subclass of trident.testing.SpoutSource" in done.output
