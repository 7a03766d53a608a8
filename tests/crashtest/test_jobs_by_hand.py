"""Right jobs as people write them give no false alarm at any kill; of each wrong one the kills that break it are found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.crashtest.jobs_by_hand import RIGHT, SMALL_SPARK, WRONG, crash, server_of
from trident.crashtest import KillMoment, TrialOutcome

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(autouse=True)
def _small_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", SMALL_SPARK)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


def tell_servers(names: list[str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "SHOP_REDIS" in names:
        monkeypatch.setenv("SHOP_REDIS", f"redis://{request.getfixturevalue('redis_server').address}/0")
    if "SHOP_POSTGRES" in names:
        address = request.getfixturevalue("postgres_server").address
        monkeypatch.setenv("SHOP_POSTGRES", f"postgresql://trident@{address}/postgres")


@pytest.mark.long
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_job_gives_no_false_alarm(
    name: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_servers(server_of(RIGHT[name]), request, monkeypatch)
    report = crash(RIGHT[name], tmp_path / "job", sys.executable, tuple(KillMoment))
    assert [trial for trial in report.trials if trial.outcome in (TrialOutcome.wrong, TrialOutcome.stopped)] == []
    assert report.kills >= len(KillMoment) - 2, "a short function may be over before a time comes"


@pytest.mark.long
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_job_is_found_with_key_and_kill(
    name: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_servers(server_of(WRONG[name]), request, monkeypatch)
    moments = [KillMoment.after, KillMoment.uncommitted]
    report = crash(WRONG[name], tmp_path / "job", sys.executable, moments)
    wrong = [trial for trial in report.trials if trial.outcome is TrialOutcome.wrong]
    assert wrong
    assert all(
        trial.where and all(each.key and each.expected != each.found for each in trial.differences) for trial in wrong
    )
    assert {trial.point.moment for trial in wrong} == ({KillMoment.line} if WRONG[name].by_line else {*moments})
