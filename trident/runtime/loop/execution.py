"""Where batches are processed and committed: chosen once at the start, as an object that places each batch.

Handing a batch to another thread costs more than a small batch does. The loop's own thread costs nothing, but sees to
nothing else meanwhile: so it takes all batches where they are wanted one by one, and else only those that are done in no
time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from trident.planner import Plan
from trident.runtime.daemon_pool import DaemonPool
from trident.runtime.engine.runners import Runner
from trident.runtime.loop.batch import LOOP, Lane
from trident.runtime.start.capabilities import is_all_in_memory
from trident.runtime.start.opened_topology import OpenedTopology
from trident.runtime.steps.kernels import only_kernels
from trident.spout.interfaces import Quick

_BRIEF_BYTES = 96 << 10
"""Up to this size a batch that meets kernels and memory only is done sooner than it is handed to other threads."""


class Execution(Protocol):
    """Says where each batch is processed and committed."""

    def lane_of(self, runner: Runner, size: int | None, alone: bool) -> Lane:
        """Return where a batch is processed and committed that `runner` takes.

        `size`: about how many bytes the batch has; None if a spout does not say.
        `alone`: whether no other batch is in flight.
        """


class Overlapping:
    """One batch is processed while another commits: all of them in other threads."""

    def __init__(self, pools: Lane) -> None:
        self._pools = pools

    def lane_of(self, runner: Runner, size: int | None, alone: bool) -> Lane:
        return self._pools


class OneByOne:
    """No two batches overlap: what runs in this process runs in the loop's thread, whatever its size."""

    def __init__(self, pools: Lane) -> None:
        self._pools = pools

    def lane_of(self, runner: Runner, size: int | None, alone: bool) -> Lane:
        """Leave only what Spark runs to other threads, so that the loop can notice that it is overdue."""
        return LOOP if runner.here else self._pools


class BriefInLoop:
    """Small batches run in the loop's thread, one after the other; larger ones overlap in other threads."""

    def __init__(self, pools: Lane) -> None:
        self._pools = pools
        self._brief_in_loop, self._brief_in_pools = replace(LOOP, brief=True), replace(pools, brief=True)

    def lane_of(self, runner: Runner, size: int | None, alone: bool) -> Lane:
        """Hand a small batch over only behind a large one: in the loop it would wait for that one's commit."""
        if size is None or size > _BRIEF_BYTES or not runner.here:
            return self._pools
        return self._brief_in_loop if alone else self._brief_in_pools


def execution_of(opened: OpenedTopology) -> Execution:
    """Choose how the batches of a topology are executed, and open the threads for it."""
    pools = _pools(opened)
    if opened.config.max_spout_pending == 1:
        return OneByOne(pools)
    return BriefInLoop(pools) if _goes_by_size(opened, opened.plan) else Overlapping(pools)


def _pools(opened: OpenedTopology) -> Lane:
    """Open the threads that batches are processed and committed in."""
    name, config = opened.plan.topology, opened.config
    # Each attempt may hang, and the next one needs a thread.
    processing = DaemonPool(config.max_spout_pending * (config.max_batch_attempts + 1), f"trident-{name}-process")
    committing = DaemonPool(1, f"trident-{name}-commit")
    opened.closers.add("processing", lambda: processing.shutdown(wait=False, cancel_futures=True))
    opened.closers.add("committing", committing.shutdown)
    return Lane(processing.submit, committing.submit)


def _goes_by_size(opened: OpenedTopology, plan: Plan) -> bool:
    """Whether the time that a batch takes depends on its size alone: no user code and no server is involved."""
    emitters = opened.runner.program.emitters.values()
    # A user's own spout may wait for its source.
    at_hand = all(isinstance(emitter, Quick) and emitter.is_quick for emitter in emitters)
    return at_hand and is_all_in_memory(plan) and opened.committer.is_quick and only_kernels(plan)
