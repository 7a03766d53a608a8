"""The thread that tells events: in order, whatever a callback does."""

from __future__ import annotations

from trident.cluster.state.cluster_state import ClusterEvent, EventTeller

ONE, TWO, THREE = (ClusterEvent("changed", f"/{number}") for number in range(3))


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
