"""What clients ask of Nimbus: topologies are submitted, paused, ended, rebalanced and upgraded, as changes of their records.

Nothing here starts or stops a process: Nimbus and the supervisors act on what the records say. Each change is one
compare-and-set, so it is done or not, and a submission, an activation, a kill or an upgrade that is asked for twice is done
once.

Whether new code may go on with the log of a topology: what its package says that it means, against what the log
says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from trident.cluster.code.code_store import UNUSED_S, CodeStore
from trident.cluster.code.package_manifest import ComponentFacts, PackageManifest
from trident.cluster.code.topology_package import settings_of
from trident.cluster.nimbus.topology_changes import (
    activated,
    deactivated,
    killed,
    possible,
    rebalanced,
    refuse_killed,
    upgraded,
)
from trident.cluster.nimbus.topology_names import TopologyNames, is_name
from trident.cluster.state.cluster_records import StormBase, WantedStatus
from trident.cluster.state.storm_cluster_state import StormClusterState
from trident.cluster_errors import BadPackage, ClusterError, NoSuchTopology, UpgradeRefused
from trident.coordination.log_address import open_reader
from trident.errors import LogError
from trident.planner.meaning import Meaning, compare
from trident.storm import StormConfig

KILL_WAIT_S = 30.0
"""How long what has begun may take before a topology is ended, unless the request says."""


@dataclass(frozen=True)
class Submission:
    """What a client submits, beside the package, which Nimbus has already.

    `name`: "" for the one that the package has.
    `submission`: chosen by the client; the same one again, with the same package, is the same submission.
    `workers`: None for what the settings say, or one.
    """

    sha256: str
    name: str = ""
    submission: str = ""
    conf: Mapping[str, str] = field(default_factory=dict)
    workers: int | None = None


class Submissions:
    """Topologies as clients change them. Threads may share it, and several Nimbuses.

    `log_dir_of`: returns where the log of a topology belongs, by its name; "" if Nimbus does not know.
    """

    def __init__(
        self, cluster: StormClusterState, code: CodeStore, log_dir_of: Callable[[str], str] = lambda name: ""
    ) -> None:
        self.cluster, self.code, self.names = cluster, code, TopologyNames(cluster)
        self._log_dir_of = log_dir_of

    def submit(self, asked: Submission) -> str:
        """Add a topology; returns its id.

        Raises `NameTaken`: another topology has the name.
        Raises `BadPackage`: its package is not there, damaged, or of other versions.
        Raises `ConfigError`: a setting is not possible.
        """
        manifest = self._manifest(asked.sha256)
        name = asked.name or manifest.name
        if not is_name(name):
            raise ClusterError(
                f"{name!r} cannot name a topology: up to 128 letters, digits, '_', '.' and '-', the first of them a letter, a "
                "digit or '_'"
            )
        settings = settings_of(manifest.kind, name, asked.conf, asked.workers)
        default = settings.workers if isinstance(settings, StormConfig) else 1
        workers = possible("workers", default if asked.workers is None else asked.workers)
        log_dir = self._log_dir_of(name) if manifest.kind == "trident" else ""
        return self.names.submit(_base_of(asked, name, manifest, workers, log_dir))

    def activate(self, topology: str) -> StormBase:
        """Let a topology go on, by its id or its name; one that was marked as failed gets a new driver."""
        return self._change(topology, activated)

    def deactivate(self, topology: str) -> StormBase:
        """Have a topology begin nothing more; what has begun is finished."""
        return self._change(topology, deactivated)

    def kill(self, topology: str, wait_s: float = KILL_WAIT_S) -> StormBase:
        """End a topology: what has begun may take `wait_s`, then it is forgotten. Its log and its states stay."""
        return self._change(topology, lambda base: killed(base, wait_s))

    def rebalance(
        self,
        topology: str,
        wait_s: float = KILL_WAIT_S,
        workers: int | None = None,
        executors: Mapping[str, int] | None = None,
    ) -> StormBase:
        """Run a topology with other numbers of workers and of executors where these are given; without, in a new driver.

        Raises `ClusterError`: there is no such component, or it has fewer tasks; or executors are given for a topology of
        Trident's.
        """
        wanted = dict(executors or {})
        _, base = self.names.find(topology)
        components = self._components(base) if wanted and base.kind == "bolts" else {}
        return self._change(topology, lambda base: rebalanced(base, wait_s, workers, wanted, components))

    def upgrade(
        self, topology: str, sha256: str, conf: Mapping[str, str] | None = None
    ) -> tuple[StormBase, UpgradeCheck]:
        """Run new code on the same log; one that was marked as failed runs again. With the code that it has nothing is done.

        `conf`: in place of the settings that it was submitted with; None keeps these.
        Raises `UpgradeRefused`: the new code does not fit the log, or is of the other kind. Nothing was changed.
        """
        manifest = self._manifest(sha256)
        _, base = self.names.find(topology)
        refuse_killed(base, "upgraded")
        wanted = base.conf if conf is None else conf
        if manifest.kind != base.kind:
            raise UpgradeRefused(
                f"topology {base.storm_name!r} is of kind {base.kind}, and the new code is of kind {manifest.kind}; submit it "
                "under another name"
            )
        settings_of(manifest.kind, base.storm_name, wanted, base.num_workers)
        check, before = self._check(base, manifest, wanted), self._components(base)
        return self._change(topology, lambda base: upgraded(base, sha256, manifest, wanted, before)), check

    def act(self, topology: str, action: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Do what the REST interface asks for: `activate`, `deactivate`, `kill` or `rebalance`; returns what became of it."""
        wait_s = parameters.get("wait_s", KILL_WAIT_S)
        if action == "activate":
            base = self.activate(topology)
        elif action == "deactivate":
            base = self.deactivate(topology)
        elif action == "kill":
            base = self.kill(topology, wait_s)
        elif action == "rebalance":
            base = self.rebalance(topology, wait_s, parameters.get("workers"), parameters.get("executors"))
        else:
            raise ClusterError(f"{action!r} is not possible; possible: activate, deactivate, kill, rebalance")
        return {"name": base.storm_name, "topologyStatus": base.status.kind, "generation": base.generation}

    def remove(self, storm_id: str) -> None:
        """Forget a topology that has ended, with its heartbeats and errors; its name is free."""
        self.names.remove(storm_id)
        self.cluster.teardown_heartbeats(storm_id)
        self.cluster.teardown_topology_errors(storm_id)

    def remove_unused_code(self, older_than_s: float = UNUSED_S) -> list[str]:
        """Remove the packages that no topology runs or may return to, and that are not new; returns their hashes."""
        used = {
            each for base in self.cluster.all_bases().values() for each in (base.code_hash, base.previous_code_hash)
        }
        return self.code.remove_unused(used, older_than_s)

    def _manifest(self, sha256: str) -> PackageManifest:
        manifest = self.code.check(sha256)  # as supervisors do, which would refuse it each time
        manifest.check_versions()
        return manifest

    def _components(self, base: StormBase) -> Mapping[str, ComponentFacts]:
        try:
            return self.code.manifest(base.code_hash).components
        except BadPackage:  # lost: an upgrade must be possible all the same
            return {}

    def _change(self, topology: str, change: Callable[[StormBase], StormBase]) -> StormBase:
        storm_id, _ = self.names.find(topology)
        changed = self.cluster.update_storm(storm_id, change)
        if changed is None:
            raise NoSuchTopology(f"topology {topology!r} has just ended")
        return changed

    def _check(self, base: StormBase, manifest: PackageManifest, conf: Mapping[str, str]) -> UpgradeCheck:
        if base.kind == "bolts":
            return UpgradeCheck(False)
        log_dir = conf.get("log_dir") or base.log_dir or self._log_dir_of(base.storm_name)
        if not log_dir:
            return UpgradeCheck(False, ("not compared with the log: Nimbus does not know where it is",))
        allowed = conf.get("allow_changed_topology", "").lower() in ("true", "1", "yes", "on")
        return check_upgrade(base.storm_name, manifest, log_dir, allowed)


def _base_of(asked: Submission, name: str, manifest: PackageManifest, workers: int, log_dir: str) -> StormBase:
    now = time.time()
    return StormBase(
        storm_name=name,
        launch_time_secs=now,
        status=WantedStatus("active", now),
        num_workers=workers,
        component_executors={each: facts.executors for each, facts in manifest.components.items()},
        kind=manifest.kind,
        target=manifest.target,
        code_hash=asked.sha256,
        conf=dict(asked.conf),
        submission=asked.submission,
        log_dir=log_dir,
    )


@dataclass(frozen=True)
class UpgradeCheck:
    """What a check found.

    `compared`: whether there was a log to compare with.
    `notes`: what the user should know: why there was none, which states are no longer declared.
    """

    compared: bool
    notes: tuple[str, ...] = ()


def check_upgrade(name: str, manifest: PackageManifest, log_dir: str, allow_changes: bool) -> UpgradeCheck:
    """Compare the meaning of a package with the log of the topology that it is for.

    The driver compares again when it starts, with what it loads itself. Nothing of the package is run here.

    Raises `UpgradeRefused`: a state or a stream means something else than the log was written with, and `allow_changes` is not
    set.
    """
    now = Meaning.of_package(manifest.meaning)
    try:
        before = _recorded(log_dir)
    except LogError as error:
        return UpgradeCheck(False, (f"not compared with the log: {error}. The driver does that when it starts",))
    if before is None:
        return UpgradeCheck(False, (f"not compared with the log: there is none in {log_dir} yet",))
    compared = compare(before, now)
    if compared.refused and not allow_changes:
        listed = "\n".join(
            f"  {text}\n    To do: {remedy.replace('{name}', name)}" for text, remedy in compared.refused
        )
        raise UpgradeRefused(
            f"the new code of topology {name!r} does not fit its log:\n{listed}\nNothing was changed; the topology runs on."
        )
    notes = [f"{change.text}; taken as it is, because allow_changed_topology is set" for change in compared.refused]
    notes += [
        *compared.taken,
        *(f"{one} of the log is no longer declared; it stays as it is" for one in compared.dropped),
    ]
    return UpgradeCheck(True, tuple(notes))


def _recorded(log_dir: str) -> Meaning | None:
    with closing(open_reader(log_dir)) as reader:
        if not reader.is_there():
            return None
        return Meaning.of_log(reader.refresh().declared)
