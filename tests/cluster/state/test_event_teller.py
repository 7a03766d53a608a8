"""The thread that tells events: in order, whatever a callback does."""

from __future__ import annotations

import threading

import pytest

from trident.cluster.state.cluster_state import ClusterEvent
from trident.cluster.state.event_teller import EventTeller

ONE, TWO, THREE = (ClusterEvent("changed", f"/{number}") for number in range(3))


def test_what_is_found_is_told_before_what_comes_later() -> None:
    told: list[ClusterEvent] = []
    teller = EventTeller("test")
    teller.register(told.append)
    began, go = threading.Event(), threading.Event()

    def find() -> list[ClusterEvent]:
        began.set()
        go.wait(10)
        return [ONE, TWO]

    teller.tell_found(find)
    began.wait(10)
    teller.tell(THREE)
    go.set()
    teller.close()
    assert told == [ONE, TWO, THREE]


def test_a_search_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    told: list[ClusterEvent] = []
    teller = EventTeller("test")
    teller.register(told.append)
    teller.tell_found(lambda: [ONE, TWO][2:3] or [][0])
    teller.tell(THREE)
    teller.close()
    assert told == [THREE]
    assert "what was missed could not be found out" in caplog.text


def test_a_callback_may_close_and_register_others() -> None:
    told: list[ClusterEvent] = []
    teller = EventTeller("test")

    def again(event: ClusterEvent) -> None:
        teller.register(told.append)
        if event == TWO:
            teller.close()

    registered = teller.register(again)
    teller.tell(ONE)
    teller.tell(TWO)
    teller._thread.join(10)
    teller.unregister(registered)
    assert told == [TWO]
    assert not teller._thread.is_alive()
