"""What clients ask of Nimbus, as changes of records: each one compare-and-set, done once although asked for twice."""

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

from trident.cluster.code_store import CodeStore
from trident.cluster.package_archive import ComponentFacts, PackageManifest
from trident.cluster.topology_package import settings_of
from trident.cluster_state.cluster_records import StormBase, WantedStatus
from trident.cluster_state.storm_cluster_state import ClusterState, StormClusterState
from trident.config import Config
from trident.errors import BadPackage, ClusterError, LogError, NameTaken, NoSuchTopology, UpgradeRefused
from trident.log.log_address import open_reader
from trident.plan.evolution import ALLOW, RefusedChange
from trident.plan.meaning import Meaning, compare
from trident.storm import StormConfig

KILL_WAIT_S = 30.0  # how long what has begun may take before a topology is ended, unless the request says

Components = Mapping[str, ComponentFacts]

_MOST = 10_000
_COUNTER = "/counter"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")  # files, records and command lines contain it


class UpgradeCheck(NamedTuple):
    """What a check found."""

    compared: bool  # whether there was a log to compare with
    notes: tuple[str, ...] = ()  # what the user should know: why there was none, which states are no longer declared


class Submissions:
    """Topologies as clients change them. Threads may share it, and several Nimbuses."""

    def __init__(self, cluster: StormClusterState, code: CodeStore, log_dir_of: Callable[[str], str]) -> None:
        self.cluster, self.code = cluster, code
        self._log_dir_of = log_dir_of

    def submit(
        self,
        sha256: str,
        name: str = "",
        submission: str = "",
        conf: Mapping[str, str] | None = None,
        workers: int | None = None,
    ) -> str:
        """Add a topology, whose package Nimbus has; returns its id. The same `submission` again is the same topology."""
        manifest, conf = self._manifest(sha256), dict(conf or {})
        name = name or manifest.name
        if not _NAME.fullmatch(name):
            raise ClusterError(
                f"{name!r} cannot name a topology: up to 128 letters, digits, '_', '.' and '-', the first of them a letter, a "
                "digit or '_'"
            )
        settings = settings_of(manifest.kind, name, conf, workers)
        default = settings.workers if isinstance(settings, StormConfig) else 1
        now = time.time()
        base = StormBase(
            storm_name=name,
            launch_time_secs=now,
            status=WantedStatus("active", now),
            num_workers=_possible("workers", default if workers is None else workers),
            component_executors={each: facts.executors for each, facts in manifest.components.items()},
            kind=manifest.kind,
            target=manifest.target,
            code_hash=sha256,
            conf=conf,
            submission=submission,
            # Chosen once: it must not depend on which daemon starts the driver, and in which folder.
            log_dir=self._log_dir_of(name) if manifest.kind == "trident" else "",
        )
        return add_topology(self.cluster, base)

    def activate(self, topology: str) -> StormBase:
        """Let a topology go on, by its id or its name; one that was marked as failed gets a new driver."""

        def change(base: StormBase) -> StormBase:
            if base.status.kind == "active":
                return base
            # Deaths count for their generation: those that it failed of count no more.
            generation = base.generation + (base.status.kind == "failed")
            return replace(base, status=WantedStatus("active", time.time()), generation=generation)

        return self._change(topology, "activated", change)

    def deactivate(self, topology: str) -> StormBase:
        def change(base: StormBase) -> StormBase:
            if base.status.kind == "failed":
                reason = base.status.reason or "its driver failed"
                raise ClusterError(f"topology {base.storm_name!r} does not run: {reason}")
            is_inactive = base.status.kind == "inactive"
            return base if is_inactive else replace(base, status=WantedStatus("inactive", time.time()))

        return self._change(topology, "deactivated", change)

    def kill(self, topology: str, wait_s: float = KILL_WAIT_S) -> StormBase:
        """End a topology: what has begun may take `wait_s`, then it is forgotten. Its log and its states stay."""

        def change(base: StormBase) -> StormBase:
            # From the first time on, or a client that asks again because it is impatient would only lengthen the wait.
            since = base.status.since_secs if base.status.kind == "killed" else time.time()
            return replace(base, status=WantedStatus("killed", since, _seconds(wait_s)))

        return self._change(topology, None, change)

    def rebalance(
        self,
        topology: str,
        wait_s: float = KILL_WAIT_S,
        workers: int | None = None,
        executors: Mapping[str, int] | None = None,
    ) -> StormBase:
        """Run a topology with other numbers of workers and executors; without any, in a new driver."""
        wanted = dict(executors or {})
        _, base = self.cluster.find_storm(topology)
        # Not within the change, which is tried again while others change the record.
        components = self._components(base) if wanted and base.kind == "bolts" else {}
        return self._change(topology, "rebalanced", lambda base: rebalance(base, wait_s, workers, wanted, components))

    def upgrade(
        self, topology: str, sha256: str, conf: Mapping[str, str] | None = None
    ) -> tuple[StormBase, UpgradeCheck]:
        """Run new code, and new settings if given, on the same log. `UpgradeRefused`: nothing was changed."""
        manifest = self._manifest(sha256)
        _, base = self.cluster.find_storm(topology)
        _refuse_killed(base, "upgraded")
        wanted = base.conf if conf is None else conf
        if manifest.kind != base.kind:
            raise UpgradeRefused(
                f"topology {base.storm_name!r} is of kind {base.kind}, and the new code is of kind {manifest.kind}; submit it "
                "under another name"
            )
        settings = settings_of(manifest.kind, base.storm_name, wanted, base.num_workers)
        # Before the change, because a log on a server that is away takes a while to say so.
        check = self._check(base, manifest, settings) if isinstance(settings, Config) else UpgradeCheck(False)
        before = self._components(base)

        def change(base: StormBase) -> StormBase:
            if (base.code_hash, dict(base.conf)) == (sha256, dict(wanted)):
                return base
            # What an earlier upgrade has replaced, without what its drivers noted of the log.
            since = {name: value for name, value in base.previous.items() if name != "epoch"}
            return replace(
                base,
                code_hash=sha256,
                conf=dict(wanted),
                target=manifest.target,
                component_executors=_executors_after(base, manifest, before),
                generation=base.generation + 1,
                status=WantedStatus("active", time.time()) if base.status.kind == "failed" else base.status,
                # While the last upgrade has committed nothing, what can be returned to is still the code before that.
                previous_code_hash=base.previous_code_hash or base.code_hash,
                previous=since or _facts_before(base),
            )

        return self._change(topology, "upgraded", change), check

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

    def remove_unused_code(self) -> list[str]:
        """Remove the packages that no topology runs or may return to, and that are not new; returns their hashes."""
        used = {one for base in self.cluster.all_bases().values() for one in (base.code_hash, base.previous_code_hash)}
        return self.code.remove_unused(used)

    def _manifest(self, sha256: str) -> PackageManifest:
        manifest = self.code.check(sha256)  # as supervisors do, which would refuse it each time
        manifest.check_versions()
        return manifest

    def _components(self, base: StormBase) -> Components:
        try:
            return self.code.manifest(base.code_hash).components
        except BadPackage:  # lost: an upgrade must be possible all the same
            return {}

    def _change(self, topology: str, done: str | None, change: Callable[[StormBase], StormBase]) -> StormBase:
        """Change a record; `done` says what cannot be done to one that is being killed, None if it can."""

        def change_unless_killed(base: StormBase) -> StormBase:
            # In each try, as another client may kill it meanwhile.
            if done is not None:
                _refuse_killed(base, done)
            return change(base)

        storm_id, _ = self.cluster.find_storm(topology)
        now = self.cluster.update_storm(storm_id, change_unless_killed)
        if now is None:
            raise NoSuchTopology(f"topology {topology!r} has just ended")
        return now

    def _check(self, base: StormBase, manifest: PackageManifest, settings: Config) -> UpgradeCheck:
        """Compare the meaning of a package with the log; the driver compares again, with what it loads itself."""
        # Nothing of the package is run: its manifest says what it means.
        log_dir, name = settings.log_dir or base.log_dir or self._log_dir_of(base.storm_name), base.storm_name
        try:
            with closing(open_reader(log_dir)) as reader:
                before = Meaning.of_log(reader.refresh().declared) if reader.is_there() else None
        except LogError as error:
            return UpgradeCheck(False, (f"not compared with the log: {error}. The driver does that when it starts",))
        if before is None:
            return UpgradeCheck(False, (f"not compared with the log: there is none in {log_dir} yet",))
        compared = compare(before, Meaning.of_log(manifest.meaning))
        if not settings.allow_changed_topology:
            refuse_changes(name, "its log", compared.refused)
        taken = [f"{change.text}; taken as it is, because allow_changed_topology is set" for change in compared.refused]
        dropped = [f"{one} of the log is no longer declared; it stays as it is" for one in compared.dropped]
        return UpgradeCheck(True, (*taken, *compared.taken, *dropped))


def refuse_changes(name: str, what: str, refused: Sequence[RefusedChange]) -> None:
    if refused:
        listed = "\n".join(f"  {text}\n    To do: {remedy.replace('{name}', name)}" for text, remedy in refused)
        beside = (
            f" --conf replaces all settings: give those of `trident show {name}` too, and leave it out the next time."
        )
        raise UpgradeRefused(
            f"the new code of topology {name!r} does not fit {what}:\n{listed}\nNothing was changed; the topology runs on."
            f"{beside if ALLOW in listed else ''}"
        )


def add_topology(cluster: StormClusterState, base: StormBase) -> str:
    """Add a topology under its name; returns its id: the earlier one if the same submission and code came before."""
    storm_id, before = "", None
    while True:
        has_it = cluster.storm_of_name(base.storm_name)
        if has_it is None:
            storm_id = storm_id or _new_id(cluster.state, base.storm_name)
            # Name and record come and go in one change, so only one can have a name, whenever a Nimbus dies.
            if cluster.activate_storm(storm_id, base):
                return storm_id
        elif (theirs := cluster.storm_base(has_it)) is not None:
            _refuse_another(base, has_it, theirs)
            return has_it
        elif has_it == before:  # else it was removed in between
            name = base.storm_name
            raise ClusterError(
                f"the name {name!r} is that of {has_it}, of which there is no record: remove the node /names/{name}"
            )
        before = has_it


def _refuse_another(base: StormBase, storm_id: str, theirs: StormBase) -> None:
    name = theirs.storm_name
    if base.submission and base.submission == theirs.submission:
        if base.code_hash == theirs.code_hash:
            return
        raise NameTaken(
            f"the submission {base.submission} of {storm_id} was made with another package; choose another id"
        )
    if theirs.status.kind == "killed":
        raise NameTaken(
            f"topology {name!r} (id {storm_id}) is being killed, and keeps its name until it has ended: within "
            f"{theirs.status.wait_secs:g} s plus the time that its driver needs to end. Submit it again then, or speed it up: "
            f"`trident kill {name} -w 0`"
        )
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(theirs.launch_time_secs))
    raise NameTaken(
        f"the cluster has a topology {name!r}, submitted at {since} (id {storm_id}). Give another name, kill it "
        f"first (`trident kill {name}`), or give it new code (`trident upgrade`)"
    )


def _new_id(state: ClusterState, name: str) -> str:
    """Return `name-counter-time`, which no topology ever had."""
    # Not by a sequential node: these count what is deleted as well.
    while True:
        counter = state.get_node(_COUNTER)
        number = int(counter.data or b"0") + 1 if counter is not None else 1
        if state.compare_and_set(_COUNTER, str(number).encode(), None if counter is None else counter.version):
            return f"{name}-{number}-{int(time.time())}"


def rebalance(
    base: StormBase, wait_s: float, workers: int | None, executors: Mapping[str, int], components: Components
) -> StormBase:
    """Return the record with other numbers, which spouts and bolts take as they run; all else is a new driver."""
    if executors and base.kind == "trident":
        raise ClusterError(
            f"topology {base.storm_name!r} is a Trident topology: the parallelism of a stream is part of its declaration "
            "(parallelism_hint). Change it there, then `trident upgrade`"
        )
    for name, count in executors.items():
        if name not in components:
            listed = ", ".join(sorted(components))
            raise ClusterError(f"topology {base.storm_name!r} has no component {name!r}; it has {listed}")
        tasks = components[name].tasks
        if _possible(f"executors of {name!r}", count) > tasks:
            raise ClusterError(
                f"component {name!r} has {tasks} tasks, each of which one executor runs; it cannot have {count} executors. Set "
                "more tasks (set_num_tasks), then `trident upgrade`"
            )
    as_it_runs = base.kind == "bolts" and (workers is not None or bool(executors))
    return replace(
        base,
        num_workers=base.num_workers if workers is None else _possible("workers", workers),
        component_executors={**base.component_executors, **executors},
        generation=base.generation + (not as_it_runs),
        status=replace(base.status, wait_secs=_seconds(wait_s)),
    )


def rolled_back(base: StormBase) -> StormBase:
    """Return to the code, the settings and the executors before the last upgrade; without one, change nothing."""
    if not base.previous_code_hash:
        return base
    before = {**_facts_before(base), **base.previous}
    return replace(
        base,
        code_hash=base.previous_code_hash,
        previous_code_hash="",
        previous={},
        target=before["target"],
        conf=before["conf"],
        component_executors=before["component->executors"],
        generation=base.generation + 1,
    )


def _possible(what: str, count: int) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MOST:
        raise ClusterError(f"{what}: expected a whole number from 1 to {_MOST:,}, not {count!r}")
    return count


def _refuse_killed(base: StormBase, done: str) -> None:
    if base.status.kind == "killed":
        raise ClusterError(f"topology {base.storm_name!r} is being killed; it cannot be {done} any more")


def _executors_after(base: StormBase, manifest: PackageManifest, before: Components) -> dict[str, int]:
    """Return the executors after an upgrade: a number that a rebalance has set stays, as far as there are tasks for it."""
    after = {}
    for name, facts in manifest.components.items():
        declared, runs = before.get(name), base.component_executors.get(name)
        is_kept = declared is not None and runs is not None and runs != declared.executors
        after[name] = min(runs, facts.tasks) if is_kept and runs is not None else facts.executors
    return after


def _facts_before(base: StormBase) -> dict[str, Any]:
    return {"target": base.target, "conf": dict(base.conf), "component->executors": dict(base.component_executors)}


def _seconds(wait_s: float) -> float:
    if not 0 <= wait_s < math.inf:
        raise ClusterError(f"a wait of {wait_s!r} seconds: expected a number of at least 0")
    return float(wait_s)
