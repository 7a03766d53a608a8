"""`TridentPages`: the pages of a running Trident topology."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from trident.errors import FencedError, TridentError, describe
from trident.explain import describe as explain_states
from trident.graph import JoinWithinNode, StateNode, WindowNode
from trident.observe.events import AttemptFailed
from trident.observe.listener import TopologyListener
from trident.observe.storm_shape import pretty_seconds
from trident.observe.verdict import verdict
from trident.redaction import shown_configuration
from trident.runtime.reading.written_keys import parse_key
from trident.ui.batch_figures import BatchFigures
from trident.ui.cluster_pages import Action, Page
from trident.ui.ending import end_later
from trident.ui.trident_picture import Picture, with_counts
from trident.ui.trident_states import states_of

if TYPE_CHECKING:
    from trident.runtime.driver.running import RunningTopology

__all__ = ["TridentPages"]


class TridentPages:
    """`TopologyPages` of a `RunningTopology`.

    Parameters
    ----------
    running
        The topology. The pages listen to it until it ends.
    topology_id
        Its id in pages; its name if it has none.
    """

    def __init__(self, running: RunningTopology, topology_id: str | None = None) -> None:
        self._running, self._id = running, topology_id or running.name
        self._began = time.monotonic()
        self._errors, self._lags = RecentErrors(), LagTrend()
        self._picture, self._descriptions = Picture(running.graph), explain_states(running.graph)
        self._reading = threading.Lock()
        running.add_listener(self._errors)

    def topology(self, window_s: int = 0) -> Page:
        """Return the whole; see docs/ui.md for what each value means."""
        running, status, figures = self._running, self._running.status, self._figures()
        uptime_s = time.monotonic() - self._began
        sources = figures.sources(status["sources"])
        counted = running.pages.topology(window_s)
        page = {
            **counted,
            "id": self._id,
            "name": running.name,
            "kind": "trident",
            "status": self._status(),
            "message": status["message"],
            "uptime": pretty_seconds(uptime_s),
            "uptimeSeconds": int(uptime_s),
            "msgTimeout": running.config.message_timeout_s,
            "engine": running.config.engine,
            "runId": running.run_id,
            "txid": status["txid"],
            "batches": status["batches"],
            "tuples": status["tuples"],
            "share": status["share"],
            "rates": figures.rates(),
            "phases": figures.phases(),
            "sources": sources,
            "lags": [each["lag"] for each in sources if each["lag"] is not None],
            "lagTrend": self._lags.of(status["sources"]),
            "atWork": running.at_work.as_mapping(),
            "health": self._health(status),
            "states": _with_figures(states_of(running, self._descriptions), counted["states"]),
            "errors": self._errors.entries(),
            "workersTotal": 1,
            "executorsTotal": self._picture.steps,
            "tasksTotal": figures.tasks(),
            "configuration": shown_configuration(running.config.as_mapping()),
            "actions": self._actions(),
        }
        return {**page, "verdict": verdict(page)}

    def component(self, component: str, window_s: int = 0) -> Page:
        """Return one operation, source or state."""
        drawn = self.visualization(window_s)
        nodes = {node["id"]: node for node in drawn["nodes"]}
        if component not in nodes:
            raise KeyError(f"topology {self._id!r} has no component {component!r}; it has {', '.join(nodes)}")
        operation = self._running.pages.component(component, window_s) if not nodes[component].get("isState") else {}
        return {
            **operation,
            "id": component,
            "topologyId": self._id,
            "componentType": nodes[component]["kind"],
            **nodes[component],
            "inputs": [edge for edge in drawn["edges"] if edge["target"] == component],
            "outputs": [edge for edge in drawn["edges"] if edge["source"] == component],
            "componentErrors": [each for each in self._errors.entries() if each["component"] == component],
        }

    def visualization(self, window_s: int = 0) -> Page:
        """Return the plan: steps in their stages, states beside them, edges with rates."""
        drawn = self._picture.draw(states_of(self._running, self._descriptions), self._figures())
        return with_counts(drawn, self._running.pages.visualization(window_s))

    def batches(self) -> Sequence[Page]:
        """Return the last committed batches, oldest first."""
        return self._running.recent_progress

    def lookup(self, state: str, key: Sequence[Any]) -> Page:
        """Return the value of a key at the last committed batch; texts become values of the key's types."""
        graph = self._running.graph
        nodes = {node.name: node for node in graph.states}
        if state not in nodes:
            raise KeyError(f"topology {self._id!r} has no state {state!r}; it has {', '.join(nodes) or 'none'}")
        for node in graph.nodes:
            if isinstance(node, WindowNode | JoinWithinNode) and node.state == state:
                raise ValueError(f"state {state!r} keeps the tuples of open windows in a form of its own")
        typed = _typed(nodes[state], key)
        with self._reading:  # `txid` is that of the view's last read
            view = self._running.state(state)
            value = view.multi_get([typed])[0] if typed else view.get()
            return {"state": state, "key": list(typed), "value": value, "found": value is not None, "txid": view.txid}

    def act(self, action: Action, parameters: Mapping[str, Any]) -> Page:
        """Activate, deactivate, or end the topology."""
        running = self._running
        if not running.is_active:
            raise TridentError(f"topology {self._id!r} has ended")
        if action == "activate":
            running.activate()
        elif action == "deactivate":
            running.deactivate()
        elif action == "kill":
            end_later(self._id, running.deactivate, parameters.get("wait_s", 0.0), running.stop)
        else:
            raise TridentError(
                f"{action} is not possible for topology {self._id!r}; possible: {', '.join(self._actions())}"
            )
        return {"status": "success"}

    def _actions(self) -> list[str]:
        return ["activate", "deactivate", "kill"] if self._running.is_active else []

    def _figures(self) -> BatchFigures:
        return BatchFigures(self._running.recent_progress, time.monotonic(), time.monotonic() - self._began)

    def _status(self) -> str:
        if self._running.exception() is not None:
            return "FAILED"
        if not self._running.is_active:
            return "STOPPED"
        return "INACTIVE" if self._running.is_deactivated else "ACTIVE"

    def _health(self, status: Mapping[str, Any]) -> Page:
        error = self._running.exception()
        return {
            "failures": status["failures"],
            "lastFailure": status["lastFailure"],
            "deadLetters": status["deadLetters"],
            "waiting": status["waiting"],
            "fenced": isinstance(error, FencedError),
            "error": None if error is None else describe(error),
        }


_OF_STATE = ("component", "keysUpdated", "commits", "commitLatencyMs", "keysRead", "keysCached", "keysWritten")


def _with_figures(states: Sequence[Page], counted: Sequence[Page]) -> list[Page]:
    """Add what was counted of states."""
    figures = {each["state"]: {key: each[key] for key in _OF_STATE} for each in counted}
    return [{**each, **figures[each["state"]]} for each in states]


def _typed(node: StateNode, key: Sequence[Any]) -> tuple[Any, ...]:
    texts = [each if isinstance(each, str) else json.dumps(each, default=str) for each in key]
    fields = node.key_fields
    if fields and not texts:
        raise ValueError(f"state {node.name!r} is a map: name a key ({', '.join(fields.names)})")
    if not texts:
        return ()
    if len(node.value) and not fields:
        raise ValueError(f"state {node.name!r} holds a single value; name no key")
    if fields and len(texts) not in (1, len(fields)):
        raise ValueError(f"state {node.name!r}: expected {len(fields)} parts of a key ({', '.join(fields.names)})")
    return parse_key(texts[0] if len(texts) == 1 else json.dumps(texts), fields, node.name)


# `RecentErrors`: the last failed attempts of a topology, for its page.

_KEPT = 50


class RecentErrors(TopologyListener):
    """Keeps the last 50 failed attempts, with the names of Storm UI's errors."""

    def __init__(self) -> None:
        self._kept: deque[AttemptFailed] = deque(maxlen=_KEPT)
        self._guard = threading.Lock()
        self._host = socket.gethostname()

    def on_attempt_failed(self, event: AttemptFailed) -> None:
        """Keep it."""
        with self._guard:
            self._kept.append(event)

    def entries(self) -> list[Page]:
        """Return them, oldest first."""
        with self._guard:
            kept = list(self._kept)
        return [self._entry(event) for event in kept]

    def _entry(self, event: AttemptFailed) -> Page:
        at_s = event.timestamp_ms / 1000
        return {
            "component": event.step,
            "error": event.details or event.cause,
            "cause": event.cause,
            "row": event.row,
            "txid": event.txid,
            "attempt": event.attempt,
            "willRetry": event.will_retry,
            "errorHost": self._host,
            "errorTime": int(at_s),
            "errorLapsedSecs": max(0, int(time.time() - at_s)),
        }


# `LagTrend`: whether sources get further ahead, from what their lag was in the last minutes.

Trend = Literal["grows", "shrinks", "steady"]

_SPAN_S = 180.0
_APART_S = 2.0
_FEWEST = 10
_SHARE, _AMOUNT = 0.2, 100  # by which it must have changed, so that it is no accident


class LagTrend:
    """Notes the lag whenever it is asked for, at most every two seconds. Any number of readers may ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._guard = clock, threading.Lock()
        self._notes: deque[tuple[float, int]] = deque()

    def of(self, sources: Sequence[Mapping[str, Any]]) -> Trend | None:
        """Return how the lag of all sources has changed; None where one does not say its lag, or for too short a time.

        Parameters
        ----------
        sources
            As of `RunningTopology.status`.
        """
        now, amounts = self._clock(), [each["lag"]["amount"] if each["lag"] else None for each in sources]
        with self._guard:
            if not amounts or None in amounts:  # what is not known is not 0
                self._notes.clear()
                return None
            self._note(now, sum(filter(None, amounts)))
            if len(self._notes) < _FEWEST:
                return None
            first, last = self._notes[0][1], self._notes[-1][1]
        if last > first * (1 + _SHARE) + _AMOUNT:
            return "grows"
        return "shrinks" if last < first * (1 - _SHARE) - _AMOUNT else "steady"

    def _note(self, now: float, amount: int) -> None:
        notes = self._notes
        while notes and now - notes[0][0] > _SPAN_S:
            notes.popleft()
        if not notes or now - notes[-1][0] >= _APART_S:
            notes.append((now, amount))
