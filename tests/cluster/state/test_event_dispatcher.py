"""The thread that delivers events: in order, whatever a callback does."""

from __future__ import annotations

from trident.cluster.state.cluster_state import EventDispatcher
from trident.servers.nodes import NodeEvent

ONE, TWO, THREE = (NodeEvent("changed", f"/{number}") for number in range(3))


def test_a_callback_may_close_and_register_others() -> None:
    received: list[NodeEvent] = []
    dispatcher = EventDispatcher()

    def again(event: NodeEvent) -> None:
        dispatcher.register(received.append)
        if event == TWO:
            dispatcher.close()

    registered = dispatcher.register(again)
    dispatcher.put(ONE)
    dispatcher.put(TWO)
    dispatcher._thread.join(10)
    dispatcher.unregister(registered)
    assert received == [TWO]
    assert not dispatcher._thread.is_alive()
