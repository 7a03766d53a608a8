"""Which Nimbus leads: the one whose ephemeral node is there."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from typing import Any

from trident.cluster.state.cluster_state import ClusterState
from trident.cluster_errors import ClusterUnreachable

LEADER, _HOSTS = "/nimbus/leader", "/nimbus/hosts"


class Leadership:
    """The candidacy of one Nimbus.

    Nothing depends on two of them never believing that they lead: each change of an assignment is refused if another was made
    since the one that it is based on.

    `url`: where this Nimbus answers.
    """

    def __init__(self, state: ClusterState, url: str, version: str) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._state = state
        self._about = {
            "id": self.id, "url": url, "host": socket.gethostname(), "pid": os.getpid(), "since-secs": time.time(),
            "version": version,
        }  # fmt: skip

    def campaign(self) -> bool:
        """Return whether this Nimbus leads now; it does from here on if there was no leader. Who leads is watched."""
        data = json.dumps(self._about).encode()
        host = f"{_HOSTS}/{self.id}"
        if self._state.get_data(host) is None:
            self._state.set_ephemeral_node(host, data)
        while True:
            leader = self._state.get_data(LEADER, watch=True)
            if leader is not None:
                return bool(json.loads(leader)["id"] == self.id)
            self._state.create_ephemeral_node(LEADER, data)

    def resign(self) -> None:
        """Let another one lead, and be no candidate any more."""
        try:
            if (leader := leader_of(self._state)) is not None and leader["id"] == self.id:
                self._state.delete_node(LEADER)
            self._state.delete_node(f"{_HOSTS}/{self.id}")
        except ClusterUnreachable:
            pass  # the session ends with the process, and the nodes with the session


def leader_of(state: ClusterState) -> dict[str, Any] | None:
    """What the leading Nimbus says about itself: `id`, `url`, `host`, `pid`, `since-secs`, `version`; None without one."""
    leader = state.get_data(LEADER)
    return None if leader is None else json.loads(leader)


def hosts_of(state: ClusterState) -> list[dict[str, Any]]:
    """Return what every Nimbus says about itself, including the leader."""
    return [json.loads(data) for _, data in sorted(state.get_data_below(_HOSTS).items())]
