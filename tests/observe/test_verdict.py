"""The verdict on a topology: what is said of which figures, and that nothing is well which has work and has not moved."""

import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.naming import duration
from trident.observe.health import AtWork, RunningBatch, RunningCall, StallLog, is_stalled, place_of, stalls, verdict
from trident.observe.topology_status import heartbeat_of

_OF_CLUSTER = ("statusReason", "heardSecondsAgo", "driverDied")
CALL = RunningCall("count", (4,), 0, 40.0, "execute (bolts.py, line 9): wait()")
BATCH = RunningBatch(31, "process", 91.0, 1, "words/each", "execute (steps.py, line 3): wait()")


def page(at_work: AtWork | None = None, **told: Any) -> dict[str, Any]:
    """What the page of a topology tells that does well, but for what is given."""
    work = asdict(at_work or AtWork())
    return {"kind": "trident", "status": "ACTIVE", "health": {"failures": 0}, "atWork": work, **told}


def bolts(at_work: AtWork | None = None, **told: Any) -> dict[str, Any]:
    return page(at_work, kind="bolts", **told)


def said(told: dict[str, Any]) -> tuple[str, list[str]]:
    found = verdict(told)
    return found["tone"], [each["text"] for each in found["lines"]]


WELL, AT_WORK = "All is well: no failures.", "It is at work: no failures."
IN_CALL = (
    "`count` (task 4) has been in one call for 40 s: execute (bolts.py, line 9): wait(). "
    "Its tuples, acks and timeouts wait for it."
)
FULL = [{"boltId": "count", "capacity": "0.960"}]
CASES: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "it runs": (page(), "good", [WELL]),
    "it runs, and has said nothing of its lag": (page(lags=[]), "good", [WELL]),
    "its lag does not change": (page(lagTrend="steady"), "quiet", [WELL, "It keeps up with its sources."]),
    "its lag grows": (page(lagTrend="grows"), "warn", ["It falls behind: the lag grows."]),
    "a store is away": (
        page(health={"failures": 0, "waiting": "waiting for Redis at db:6379 since 2026-11-23 08:14:50 UTC"}), "bad",
        ["It is waiting for Redis at db:6379 since 2026-11-23 08:14:50 UTC. It goes on by itself when that answers."]),
    "the rest of a line is due": (
        page(health={"failures": 0, "waiting": "waiting for the rest of /in/a.csv since 2026-11-23 08:14:50 UTC"}),
        "quiet",
        [WELL, "It is waiting for the rest of /in/a.csv since 2026-11-23 08:14:50 UTC. Everything else goes on."]),
    "a step does not repeat itself": (page(replays={"checked": 900, "skipped": 0, "differed": 7}), "warn",
        ["A replay may give other totals: see the errors of its steps (7 of the batches checked differed)."]),
    "all steps repeat themselves": (page(replays={"checked": 900, "skipped": 0, "differed": 0}), "good", [WELL]),
    "attempts fail, which were few of many": (
        page(
            health={"failures": 539, "lastFailure": "ValueError: x"},
            topologyStats=[{"window": "600", "failed": 36, "failedOf": 12_000, "failures": "rising", "retries": 30}],
        ),
        "warn",
        ["539 attempts failed and were tried again (within ten minutes 36 of 12,000: 0.3%, rising); the last: ValueError: x."],
    ),
    "messages fail": (
        bolts(health={"failures": 9}, topologyStats=[{"window": "600", "failed": 9, "failedOf": 18, "failures": None}]),
        "warn", ["9 messages failed or timed out; their spouts were notified (within ten minutes 9 of 18: 50.0%)."]),
    "its driver died and is started again": (
        page(status="STARTING", health=None, driverDied="ValueError: no such table"), "warn",
        ["It starts again, after: ValueError: no such table"]),
    "it has no driver yet": (page(status="STARTING", health=None), "quiet", ["It starts."]),
    "nothing is known of it": ({"status": "ACTIVE"}, "quiet", ["Its driver has not reported yet."]),
    "a batch runs for 9 s": (page(AtWork(batch=RunningBatch(2, "process", 9.0))), "good", [WELL]),
    "a batch runs for 12 s": (page(AtWork(batch=RunningBatch(2, "commit", 12.0)), lagTrend="steady"), "quiet",
        [AT_WORK, "Batch 2 has run for 12 s: it is being committed."]),
    "a batch runs for 91 s": (
        page(AtWork(moved_s=95.0, done="committed", left="7 records to be read", batch=BATCH), lagTrend="steady"),
        "warn", ["Batch 31 has run for 1 min 31 s in step `words/each`: it is in execute (steps.py, line 3): wait()."]),
    "a batch runs for 91 s, which is usual": (page(AtWork(batch=RunningBatch(31, "process", 91.0, usual_s=80.0))),
        "quiet",
        [AT_WORK, "Batch 31 has run for 1 min 31 s: it is being processed. Batches take 1 min 20 s on average."]),
    "a batch is tried for the third time": (page(AtWork(batch=RunningBatch(31, "process", 40.0, 3))), "warn",
        ["Batch 31 has run for 40 s, in its 3rd try: it is being processed."]),
    "a batch waits for its next try": (page(AtWork(batch=RunningBatch(31, "retry", 45.0, 2))), "warn",
        ["Batch 31 waits for its 2nd try; nothing was committed for 45 s."]),
    "nothing is committed although there is something to be read": (
        page(AtWork(50.0, "committed", "1,000 records to be read")), "warn",
        ["Nothing was committed for 50 s with 1,000 records to be read."]),
    "nothing is committed because there is nothing": (page(AtWork(5000.0, "committed")), "good", [WELL]),
    "a bolt does not return": (bolts(AtWork(40.0, "acknowledged", "100 pending", calls=(CALL,)), bolts=FULL), "warn",
        [IN_CALL, "Nothing was acknowledged for 40 s with 100 pending."]),
    "a bolt does not return while others go on": (bolts(AtWork(0.1, "acknowledged", "3 pending", calls=(CALL,))),
        "warn", [IN_CALL]),
    "a bolt is slow as always": (bolts(AtWork(calls=(RunningCall("model", (7, 8), 1, 40.0, usual_s=35.0),))), "quiet",
        [AT_WORK, "`model` (tasks 7, 8) has been in one call for 40 s. Its tuples, acks and timeouts wait for it. "
        "Its calls take 35 s on average."]),
    "a call is longer than the timeout of messages": (
        bolts(AtWork(limit_s=5.0, calls=(RunningCall("count", (4,), 0, 6.0),))), "warn",
        ["`count` (task 4) has been in one call for 6 s. Its tuples, acks and timeouts wait for it."]),
    "a bolt is full, and returns": (bolts(bolts=FULL), "warn",
        ["count works at 96% of its capacity. More executors help (rebalance)."]),
    "it has ended while a batch ran": (
        page(AtWork(batch=BATCH), status="FAILED", health={"failures": 3, "error": "no such table"}), "bad",
        ["It has ended: no such table", "3 attempts failed and were tried again."]),
    "it is deactivated, and a batch still runs": (page(AtWork(batch=BATCH), status="INACTIVE"), "warn",
        ["Deactivated: its sources are not asked for more until it is activated.",
        "Batch 31 has run for 1 min 31 s in step `words/each`: it is in execute (steps.py, line 3): wait()."]),
    "it waits": (page(status="WAITING", health=None, statusReason="no supervisor is there"), "warn",
        ["It waits: no supervisor is there"]),
    "it waits for a store": (page(AtWork(batch=RunningBatch(31, "retry", 45.0, 9)),
        health={"failures": 0, "waiting": "waiting for PostgreSQL at db:5432 since 2026-01-02 03:04:05 UTC"}), "bad",
        ["It is waiting for PostgreSQL at db:5432 since 2026-01-02 03:04:05 UTC. It goes on by itself when that answers."]),
    "an error turns words": (page(status="FAILED", health={"failures": 0, "error": "\u202eelbat"}), "bad",
        ["It has ended: \\u202eelbat"]),
    "it was marked as failed": (page(status="FAILED", health=None, statusReason="its drivers died of: x"), "bad",
        ["It was marked as failed: its drivers died of: x"]),
    "its driver is silent": (page(heardSecondsAgo=45.0), "warn",
        ["Its driver has not been heard from for 45 s: the figures here are that old."]),
    "one attempt failed long ago": (
        page(health={"failures": 1, "lastFailure": "x"}, topologyStats=[{"window": "600", "retries": 0}]), "quiet",
        ["All is well now.", "1 attempt failed and was tried again; the last: x. None of them in the last ten minutes."]),
    "attempts fail": (page(health={"failures": 2}, topologyStats=[{"window": "600", "retries": 2}]), "warn",
        ["2 attempts failed and were tried again."]),
    "a dead letter waits": (page(health={"failures": 0, "deadLetters": 1}), "warn",
        ["1 dead letter waits: a tuple that was left out. “trident dead-letters” shows it and puts it back."]),
    "the states hold the sources back": (page(share=0.25), "warn",
        ["The states cannot keep up: sources are held back to 25% of their limits."]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_said(name: str) -> None:
    told, tone, lines = CASES[name]
    assert said(told) == (tone, lines)


@pytest.mark.parametrize("name", CASES)
def test_a_heartbeat_leads_to_the_same_verdict(name: str) -> None:
    told, tone, lines = CASES[name]
    beat = json.loads(json.dumps(heartbeat_of(told)))
    of_cluster: dict[str, Any] = {each: told[each] for each in _OF_CLUSTER if each in told}
    assert said({**beat, **of_cluster}) == (tone, lines)


seconds = st.floats(0, 1e5)
works = st.builds(
    AtWork,
    seconds,
    st.just("committed"),
    st.sampled_from(["", "5 pending"]),
    seconds,
    st.floats(0.1, 600),
    st.none() | st.builds(RunningBatch, st.integers(1, 9), st.sampled_from(["process", "retry", "wait"]), seconds),
    st.lists(st.builds(RunningCall, st.just("count"), st.just((4,)), st.just(0), seconds), max_size=3).map(tuple),
)


@given(works, st.sampled_from([None, "steady", "shrinks"]))
def test_nothing_is_well_that_has_work_and_has_not_moved(at_work: AtWork, trend: str | None) -> None:
    tone, lines = said(page(at_work, lagTrend=trend))
    moves = not stalls(at_work)
    longest = max([0.0, *([at_work.batch.seconds] if at_work.batch else []), *(each.seconds for each in at_work.calls)])
    if longest >= 10 or (at_work.left and at_work.moved_s >= 10 and at_work.batch is None):
        assert not moves
    assert any("All is well" in each or "keeps up" in each for each in lines) is (moves)
    assert (tone == "warn") is is_stalled(at_work)


@given(works)
def test_what_is_at_work_crosses_to_another_process(at_work: AtWork) -> None:
    assert AtWork.of(json.loads(json.dumps(asdict(at_work)))) == at_work
    assert AtWork.of({**asdict(at_work), "of a later version": 1}) == at_work


def test_what_stalls_is_logged_once_and_again_when_it_stalls_again(caplog: pytest.LogCaptureFixture) -> None:
    log = StallLog("words", logging.getLogger("trident.tests"))
    stuck = AtWork(calls=(CALL,))
    for at_work in (AtWork(), stuck, stuck, AtWork(), stuck):
        log.look(at_work)
    assert [each.getMessage() for each in caplog.records] == [f"topology words: {stalls(stuck)[0].text}"] * 2


@pytest.mark.parametrize(
    ("of", "text"), [(0.25, "0.2 s"), (1.9, "1 s"), (59.9, "59 s"), (91, "1 min 31 s"), (7_300, "2 h 1 min")]
)
def test_durations_have_two_units(of: float, text: str) -> None:
    assert duration(of) == text


def test_a_place_is_told_though_a_path_of_imports_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    folder: Any = Path(__file__).parent
    monkeypatch.setattr(sys, "path", [folder, *sys.path])
    assert "(test_verdict.py, line " in place_of(sys._getframe())
