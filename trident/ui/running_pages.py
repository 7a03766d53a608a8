"""`RunningPages`: the pages of a topology that runs in this process, of either kind."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trident.errors import TridentError
from trident.observe.topology_status import TopologyStatus
from trident.observe.verdict import verdict
from trident.redaction import shown_configuration
from trident.ui.cluster_pages import Action, Page

__all__ = ["AnyRunning", "RunningPages"]

logger = logging.getLogger(__name__)


class AnyRunning(Protocol):
    """A running topology: of Trident or of spouts and bolts, on Spark or not."""

    @property
    def name(self) -> str:
        """Its name."""

    def activate(self) -> None:
        """Begin again."""

    def deactivate(self) -> None:
        """Begin nothing more."""

    def stop(self) -> None:
        """End."""

    def exception(self) -> BaseException | None:
        """Return what ended it, None if it runs or was stopped."""

    def await_termination(self, timeout: float | None = None, /) -> bool:
        """Wait until it has ended; whether it has. Raises what ended it."""


class RunningPages(ABC):
    """`TopologyPages` of what runs; see docs/ui.md for what each value means.

    Parameters
    ----------
    running
        The topology.
    settings
        Those that are in force.
    topology_id
        Its id in pages; its name if it has none.
    """

    actions: Sequence[Action] = ("activate", "deactivate", "kill")

    def __init__(self, running: AnyRunning, settings: Mapping[str, Any], topology_id: str | None) -> None:
        self._running, self._id = running, topology_id or running.name
        self._settings = shown_configuration(settings)

    @abstractmethod
    def status(self) -> TopologyStatus:
        """Return the topology as it is now."""

    @abstractmethod
    def lookup(self, state: str, key: Sequence[Any]) -> Page:
        """Return the value of a key."""

    def topology(self, window_s: int = 0) -> Page:
        """Return the whole."""
        page = {
            **self.status().as_mapping(window_s, self._id),
            "configuration": self._settings,
            "actions": [] if self._has_ended else list(self.actions),
        }
        return {**page, "verdict": verdict(page)}

    def component(self, component: str, window_s: int = 0) -> Page:
        """Return one operation, source or state, one spout or bolt."""
        return self.status().component_as_mapping(component, window_s, self._id)

    def visualization(self, window_s: int = 0) -> Page:
        """Return the picture."""
        return self.status().visualization(window_s, self._id)

    def batches(self) -> Sequence[Page]:
        """Return the last committed batches, oldest first; none of spouts and bolts."""
        return []

    def act(self, action: Action, parameters: Mapping[str, Any]) -> Page:
        """Activate, deactivate, rebalance, or end the topology."""
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
        logger.info("topology %s is ended, as was asked for over its page", self._id)
        try:
            self._running.stop()
        except TridentError as error:
            logger.error("topology %s: %s", self._id, error)

    @property
    def _has_ended(self) -> bool:
        return self._running.exception() is not None or self._running.await_termination(0)
