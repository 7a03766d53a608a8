"""What clients may change of a topology's record, each a function from the old record to the new one."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trident.cluster.code.package_manifest import ComponentFacts, PackageManifest
from trident.cluster.state.cluster_records import StatusKind, StormBase, WantedStatus
from trident.cluster_errors import ClusterError

Components = Mapping[str, ComponentFacts]
_MOST = 10_000


def refuse_killed(base: StormBase, done: str) -> None:
    """Refuse to change what is being killed."""
    if base.status.kind == "killed":
        raise ClusterError(f"topology {base.storm_name!r} is being killed; it cannot be {done} any more")


def activated(base: StormBase) -> StormBase:
    """Let a topology go on; one that was marked as failed gets a new driver."""
    refuse_killed(base, "activated")
    if base.status.kind == "active":
        return base
    generation = base.generation + (base.status.kind == "failed")
    return replace(base, status=_status("active"), generation=generation)


def deactivated(base: StormBase) -> StormBase:
    """Have it begin nothing more; what has begun is finished."""
    refuse_killed(base, "deactivated")
    if base.status.kind == "failed":
        reason = base.status.reason or "its driver failed"
        raise ClusterError(f"topology {base.storm_name!r} does not run: {reason}")
    return base if base.status.kind == "inactive" else replace(base, status=_status("inactive"))


def killed(base: StormBase, wait_s: float) -> StormBase:
    """End it. Asked again, the new wait counts, from the first time on."""
    since = base.status.since_secs if base.status.kind == "killed" else time.time()
    return replace(base, status=WantedStatus("killed", since, _seconds(wait_s)))


def rebalanced(
    base: StormBase, wait_s: float, workers: int | None, executors: Mapping[str, int], components: Components
) -> StormBase:
    """Run it with other numbers; `WantedStatus.wait_secs` is what has begun may take before that.

    Spouts and bolts take other numbers as they run. All else is a new driver: Trident's, and a rebalance without numbers.
    """
    refuse_killed(base, "rebalanced")
    _check_executors(base, executors, components)
    as_it_runs = base.kind == "bolts" and (workers is not None or bool(executors))
    return replace(
        base,
        num_workers=base.num_workers if workers is None else possible("workers", workers),
        component_executors={**base.component_executors, **executors},
        generation=base.generation + (not as_it_runs),
        status=replace(base.status, wait_secs=_seconds(wait_s)),
    )


def upgraded(
    base: StormBase, sha256: str, manifest: PackageManifest, conf: Mapping[str, str], before: Components
) -> StormBase:
    """Give it other code, and a new driver; one that was marked as failed runs again. `before`: the components until now."""
    refuse_killed(base, "upgraded")
    if (base.code_hash, dict(base.conf)) == (sha256, dict(conf)):
        return base
    return replace(
        base,
        code_hash=sha256,
        conf=dict(conf),
        target=manifest.target,
        component_executors=_executors_after(base, manifest, before),
        generation=base.generation + 1,
        status=_status("active") if base.status.kind == "failed" else base.status,
        # While the last upgrade has committed nothing, what can be returned to is still the code before that.
        previous_code_hash=base.previous_code_hash or base.code_hash,
        previous=_without_proof(base.previous) if base.previous_code_hash else _replaced(base),
    )


def rolled_back(base: StormBase) -> StormBase:
    """Return to the code, the settings and the executors before the last upgrade; without one, change nothing."""
    if not base.previous_code_hash:
        return base
    before = {**_replaced(base), **base.previous}
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


def possible(what: str, count: int) -> int:
    """Return a number of workers or executors that is possible."""
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MOST:
        raise ClusterError(f"{what}: expected a whole number from 1 to {_MOST:,}, not {count!r}")
    return count


def _check_executors(base: StormBase, wanted: Mapping[str, int], components: Components) -> None:
    if wanted and base.kind == "trident":
        raise ClusterError(
            f"topology {base.storm_name!r} is a Trident topology: the parallelism of a stream is part of its declaration "
            "(parallelism_hint). Change it there, then `trident upgrade`"
        )
    for name, count in wanted.items():
        if name not in components:
            listed = ", ".join(sorted(components))
            raise ClusterError(f"topology {base.storm_name!r} has no component {name!r}; it has {listed}")
        tasks = components[name].tasks
        if possible(f"executors of {name!r}", count) > tasks:
            raise ClusterError(
                f"component {name!r} has {tasks} tasks, each of which one executor runs; it cannot have {count} executors. Set "
                "more tasks (set_num_tasks), then `trident upgrade`"
            )


def _executors_after(base: StormBase, manifest: PackageManifest, before: Components) -> dict[str, int]:
    """Return the executors after an upgrade: a number that a rebalance has set stays, as far as there are tasks for it."""
    after = {}
    for name, facts in manifest.components.items():
        declared, runs = before.get(name), base.component_executors.get(name)
        is_kept = declared is not None and runs is not None and runs != declared.executors
        after[name] = min(runs, facts.tasks) if is_kept and runs is not None else facts.executors
    return after


def _replaced(base: StormBase) -> dict[str, Any]:
    """Return what an upgrade replaces beside the package."""
    executors = dict(base.component_executors)
    return {"target": base.target, "conf": dict(base.conf), "component->executors": executors}


def _without_proof(previous: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an earlier upgrade has replaced, without what its drivers noted of the log."""
    return {name: value for name, value in previous.items() if name != "epoch"}


def _status(kind: StatusKind) -> WantedStatus:
    return WantedStatus(kind, time.time())


def _seconds(wait_s: float) -> float:
    if not 0 <= wait_s < math.inf:
        raise ClusterError(f"a wait of {wait_s!r} seconds: expected a number of at least 0")
    return float(wait_s)
