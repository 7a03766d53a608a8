"""The pages of a topology that runs in this process, Trident's or of spouts and bolts; `TopologyPage`: the server of one."""

from __future__ import annotations

import json
import logging
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trident.config import Config
from trident.errors import TridentError, UnsupportedOperation, describe
from trident.extras import needs_package
from trident.graph import JoinWithinNode, StateNode, WindowNode
from trident.naming import counted
from trident.observe.health import verdict
from trident.observe.topology_status import TopologyStatus
from trident.read.written_values import parse_key
from trident.redaction import redacted, shown_configuration
from trident.servers.server_thread import listening, url_of
from trident.storm.storm_config import StormConfig
from trident.web.cluster_pages import Action, OneTopology, Page, TopologyPages, key_texts
from trident.web.log_pages import RecentLog

if TYPE_CHECKING:
    from trident.run.running import RunningTopology
    from trident.storm.spark.running_storm import RunningStormTopology
    from trident.storm.topology_handle import LocalTopology
    from trident.web.rest import UIServer

logger = logging.getLogger(__name__)


class RunningPages(TopologyPages):
    """`TopologyPages` of what runs; see docs/monitoring.md for what each value means."""

    actions: Sequence[Action] = ("activate", "deactivate", "kill")

    def __init__(
        self,
        running: RunningTopology | RunningStormTopology | LocalTopology,
        config: Config | StormConfig,
        topology_id: str | None,
    ) -> None:
        self._running, self._id = running, topology_id or running.name
        settings, defaults = config.as_mapping(), type(config)().as_mapping()
        self._settings = shown_configuration(settings)
        self._origins = dict(config.origins) if isinstance(config, Config) else {}
        self._set = sorted(name for name, value in settings.items() if name not in defaults or defaults[name] != value)

    @abstractmethod
    def status(self) -> TopologyStatus:
        """Return the topology as it is now."""

    def topology(self, window_s: int = 0) -> Page:
        page = {
            **self.status().as_mapping(window_s, self._id),
            "configuration": self._settings,
            "configurationSet": self._set,
            "configurationOrigins": self._origins,
            "actions": [] if self._has_ended else list(self.actions),
        }
        return {**page, "verdict": verdict(page)}

    def view(self, name: str, window_s: int = 0) -> Page:
        what, _, component = name.partition("/")
        if what == "component":
            return self.status().component_as_mapping(component, window_s, self._id)
        if what in ("visualization", "series"):
            drawn = self.status()
            return (drawn.visualization if what == "visualization" else drawn.over_time)(window_s, self._id)
        return {"batches": [], "deadLetters": []}  # of spouts and bolts

    def act(self, action: Action, parameters: Mapping[str, Any]) -> Page:
        if self._has_ended:
            raise TridentError(f"topology {self._id!r} has ended")
        if action not in self.actions:
            raise TridentError(
                f"{action} is not possible for topology {self._id!r}; possible: {', '.join(self.actions)}"
            )
        self._do(action, parameters)
        return {"status": "success"}

    def _do(self, action: Action, parameters: Mapping[str, Any]) -> None:
        if action == "activate":
            self._running.activate()
            return
        self._running.deactivate()
        if action == "kill":  # who asks for it waits for an answer only
            threading.Thread(
                target=self._end, args=(parameters.get("wait_s", 0.0),), name=f"trident-{self._id}-kill", daemon=True
            ).start()

    def _end(self, wait_s: float) -> None:
        threading.Event().wait(wait_s)
        logger.info("topology %s is ended, as its page was asked to", self._id)
        try:
            self._running.stop()
        except TridentError as error:
            logger.error("topology %s: %s", self._id, error)

    @property
    def _has_ended(self) -> bool:
        return self._running.exception() is not None or self._running.await_termination(0)


class StormPages(RunningPages):
    """`TopologyPages` of a `RunningStormTopology`, or of a `LocalTopology`."""

    def __init__(self, running: RunningStormTopology | LocalTopology, topology_id: str | None = None) -> None:
        super().__init__(running, running.conf, topology_id)
        from trident.storm.topology_handle import LocalTopology

        self._topology = running
        self._on_spark = None if isinstance(running, LocalTopology) else running
        if self._on_spark is not None:
            self.actions = ("activate", "deactivate", "rebalance", "kill")

    def status(self) -> TopologyStatus:
        running, status = self._topology, self._topology.status
        figures, error = status.statistics.over().figures, running.exception()
        more = {
            "rates": {"tuplesPerSecond": status.series.per_second(status.now), "batchesPerSecond": None},
            "lags": [],
            "health": {
                "failures": figures.failed,
                "workerDeaths": None if self._on_spark is None else self._on_spark.deaths,
                "fenced": False,
                "error": None if error is None else redacted(describe(error)),
            },
        }
        ended = "STOPPED" if error is None else "FAILED"
        return replace(status, state=ended if self._has_ended else status.state, more={**status.more, **more})

    def lookup(self, state: str, key: Sequence[Any]) -> Page:
        raise UnsupportedOperation(f"topology {self._id!r} consists of spouts and bolts, which have no states")

    def _do(self, action: Action, parameters: Mapping[str, Any]) -> None:
        if action == "rebalance" and self._on_spark is not None:
            self._on_spark.rebalance(parameters.get("workers"), parameters.get("executors"), parameters.get("wait_s"))
        else:
            super()._do(action, parameters)


class TridentPages(RunningPages):
    """`TopologyPages` of a `RunningTopology`."""

    def __init__(self, running: RunningTopology, topology_id: str | None = None) -> None:
        super().__init__(running, running.config, topology_id)
        self.actions = (*self.actions, "dead-letters")
        self._topology = running
        self._reading = threading.Lock()

    def status(self) -> TopologyStatus:
        return self._topology.pages.status()

    def view(self, name: str, window_s: int = 0) -> Page:
        if name == "batches":
            return {"batches": self._topology.recent_progress}
        if name == "dead-letters":
            return {"deadLetters": self._topology.pages.dead_letters()}
        return super().view(name, window_s)

    def _do(self, action: Action, parameters: Mapping[str, Any]) -> None:
        if action == "dead-letters":
            self._topology.pages.ask_for_letters(parameters["letters"], parameters["reason"])
        else:
            super()._do(action, parameters)

    def lookup(self, state: str, key: Sequence[Any]) -> Page:
        """Return the value of a key at the last committed batch; texts become values of the key's types."""
        graph = self._topology.graph
        nodes = {node.name: node for node in graph.states}
        if state not in nodes:
            raise KeyError(f"topology {self._id!r} has no state {state!r}; it has {', '.join(nodes) or 'none'}")
        for node in graph.nodes:
            if isinstance(node, WindowNode | JoinWithinNode) and node.state == state:
                raise ValueError(f"state {state!r} keeps the tuples of open windows in a form of its own")
        typed = _typed_key(nodes[state], key)
        with self._reading:  # `txid` belongs to the view's last read
            view = self._topology.state(state)
            value = view.multi_get([typed])[0] if typed else view.get()
            return {"state": state, "key": list(typed), "value": value, "found": value is not None, "txid": view.txid}


def pages_of(running: RunningTopology | RunningStormTopology, topology_id: str | None = None) -> RunningPages:
    from trident.run.running import RunningTopology

    if isinstance(running, RunningTopology):
        return TridentPages(running, topology_id)
    return StormPages(running, topology_id)


def _typed_key(node: StateNode, key: Sequence[Any]) -> tuple[Any, ...]:
    texts, fields = key_texts(key), node.key_fields
    if fields and not texts:
        raise ValueError(f"state {node.name!r} is a map: name a key ({', '.join(fields.names)})")
    if not texts:
        return ()
    if len(node.value) and not fields:
        raise ValueError(f"state {node.name!r} holds a single value; name no key")
    if texts == [None] and len(fields) < 2:
        return (None,)
    if fields and (len(texts) not in (1, len(fields)) or texts == [None]):
        parts = counted(len(fields), "part")
        raise ValueError(f"state {node.name!r}: expected {parts} of a key ({', '.join(fields.names)})")
    only = texts[0] if len(texts) == 1 else None
    return parse_key(json.dumps(texts) if only is None else only, fields, node.name)


class TopologyPage:
    """The page of one topology, at `url`: listens from the begin on, answers once it runs. Earlier requests wait.

    `token`: what actions need; None: the page can only be read.
    Raises `ConfigError`, `EnvironmentProblem`: as `ServerThread`.
    """

    def __init__(self, host: str, port: int, token: str | None = None) -> None:
        with needs_package("the page", "ui"):  # before a topology has started, and not after
            import uvicorn  # noqa: F401

            from trident.web.rest import UIServer
        self._token = token
        self._listener = listening(UIServer.cannot, host, port)
        self._at = host, int(self._listener.getsockname()[1])
        self.url = url_of(*self._at)
        self._log = RecentLog("trident")
        self._log.__enter__()
        self._server: UIServer | None = None

    def show(self, running: RunningTopology | RunningStormTopology) -> None:
        from trident.web.rest import UIServer

        one = OneTopology(running.name, pages_of(running), self._log.page)
        self._server = UIServer(one, *self._at, self._token, listener=self._listener)

    def close(self) -> None:
        self._log.__exit__(None, None, None)
        self._listener.close() if self._server is None else self._server.close()
