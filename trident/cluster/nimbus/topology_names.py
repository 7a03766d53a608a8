"""Which topology has which name: `/names/{name}`, by which a submission is done at once or not at all.

The node holds the whole record of the topology. To set it, by compare-and-set, *is* the submission: only one can have a
name. The topology's own record follows from it, and any Nimbus that finds it missing adds it; so it does not matter when a
Nimbus dies. A node without data is a name that is free again.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from typing import Self

from trident.cluster.state.cluster_records import StormBase
from trident.cluster.state.storm_cluster_state import StormClusterState
from trident.cluster_errors import ClusterError, NameTaken, NoSuchTopology

_NAMES, _COUNTER = "/names", "/counter"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def is_name(text: str) -> bool:
    """Whether a topology may be submitted under a name, which files, records and command lines contain."""
    return _NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class _Claim:
    """What the node of a name holds: the id of a topology, and the record with which it was submitted."""

    storm_id: str
    base: StormBase

    def to_bytes(self) -> bytes:
        return json.dumps({"version": 1, "id": self.storm_id, "base": json.loads(self.base.to_bytes())}).encode()

    @classmethod
    def of_bytes(cls, data: bytes) -> Self:
        try:
            values = json.loads(data)
            return cls(values["id"], StormBase.of_bytes(json.dumps(values["base"]).encode()))
        except (ValueError, KeyError, TypeError) as error:
            raise ClusterError(
                f"the name of a topology cannot be read ({error!r}); was it written by another program?"
            ) from error


class TopologyNames:
    """The names of a cluster's topologies. Any number of processes may use them."""

    def __init__(self, cluster: StormClusterState) -> None:
        self._cluster = cluster
        cluster.state.mkdirs(_NAMES)

    def submit(self, base: StormBase) -> str:
        """Add a topology under its name; returns its id: the earlier one if the same submission and code came before.

        Raises `NameTaken`: another topology has the name. Nothing was done.
        """
        path, made = f"{_NAMES}/{base.storm_name}", ""
        while True:
            node = self._cluster.state.get_versioned(path)
            if node is not None and node.data:
                return self._of_another(_Claim.of_bytes(node.data), base)
            made = made or self._new_id(base.storm_name)
            claim = _Claim(made, base)
            if self._cluster.state.compare_and_set(path, claim.to_bytes(), None if node is None else node.version):
                self._complete(claim)
                return made

    def find(self, topology: str) -> tuple[str, StormBase]:
        """Return the id and the record of a topology, by its id or its name.

        Raises `NoSuchTopology`: there is none; the message names those that there are.
        """
        bases = self._cluster.all_bases()
        if topology in bases:
            return topology, bases[topology]
        claim = self._claim(topology) if is_name(topology) else None
        if claim is not None:
            self._complete(claim)
            if (base := self._cluster.storm_base(claim.storm_id)) is not None:
                return claim.storm_id, base
        # A topology that ends has given its name back, and is still there.
        for storm_id, base in bases.items():
            if base.storm_name == topology:
                return storm_id, base
        names = ", ".join(sorted(base.storm_name for base in bases.values())) or "none"
        raise NoSuchTopology(f"there is no topology {topology!r} in this cluster; its topologies are: {names}")

    def complete_all(self) -> None:
        """Add the record of every topology whose submission was interrupted after it took its name."""
        for data in self._cluster.state.get_data_below(_NAMES).values():
            if data:
                self._complete(_Claim.of_bytes(data))

    def remove(self, storm_id: str) -> None:
        """Forget a topology: its name is free first, so that no other Nimbus finds the name and adds it again."""
        for name in self._cluster.state.get_children(_NAMES):
            self._free(f"{_NAMES}/{name}", storm_id)
        self._cluster.remove_storm(storm_id)

    def _free(self, path: str, storm_id: str) -> None:
        while (node := self._cluster.state.get_versioned(path)) is not None and node.data:
            if _Claim.of_bytes(node.data).storm_id != storm_id:
                return
            if self._cluster.state.compare_and_set(path, b"", node.version):
                return

    def _of_another(self, claim: _Claim, base: StormBase) -> str:
        """Return the id of the topology that has the name if it is of this very submission."""
        self._complete(claim)
        theirs = claim.base
        if not base.submission or base.submission != theirs.submission:
            raise NameTaken(self._who_has_it(claim))
        if base.code_hash != theirs.code_hash:
            raise NameTaken(
                f"the submission {base.submission} of {claim.storm_id} was made with another package; choose another id"
            )
        return claim.storm_id

    def _who_has_it(self, claim: _Claim) -> str:
        """Say which topology has a name, and what to do."""
        name, now = claim.base.storm_name, self._cluster.storm_base(claim.storm_id)
        if now is not None and now.status.kind == "killed":
            return (
                f"topology {name!r} (id {claim.storm_id}) is being killed, and keeps its name until it has ended: within "
                f"{now.status.wait_secs:g} s plus the time that its driver needs to end. Submit it again then, or speed it up: "
                f"`trident kill {name} -w 0`"
            )
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(claim.base.launch_time_secs))
        return (
            f"the cluster has a topology {name!r}, submitted at {since} (id {claim.storm_id}). Give another name, kill it "
            f"first (`trident kill {name}`), or give it new code (`trident upgrade`)"
        )

    def _complete(self, claim: _Claim) -> None:
        """Add the record of a topology that has its name, if it is missing."""
        if self._cluster.storm_base(claim.storm_id) is not None:
            return
        if self._cluster.activate_storm(claim.storm_id, claim.base):
            now = self._claim(claim.base.storm_name)
            if now is None or now.storm_id != claim.storm_id:  # it was removed in between
                self._cluster.remove_storm_base(claim.storm_id)

    def _claim(self, name: str) -> _Claim | None:
        data = self._cluster.state.get_data(f"{_NAMES}/{name}")
        return _Claim.of_bytes(data) if data else None

    def _new_id(self, name: str) -> str:
        """Return `name-counter-time`, which no topology ever had.

        Not by a sequential node: these count what is deleted as well.
        """
        while True:
            counter = self._cluster.state.get_versioned(_COUNTER)
            number = int(counter.data or b"0") + 1 if counter is not None else 1
            version = None if counter is None else counter.version
            if self._cluster.state.compare_and_set(_COUNTER, str(number).encode(), version):
                return f"{name}-{number}-{int(time.time())}"
