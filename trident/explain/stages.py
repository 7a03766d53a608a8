"""Which part of a plan runs when: the stages of a batch in the workers, then its commits in the driver."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from trident.planner import Plan
from trident.planner.placing import place

__all__ = ["Stage", "stages_of"]


@dataclass(frozen=True)
class Stage:
    """Fragments that run at the same time; those of the commits run one after the other.

    Attributes
    ----------
    title
        Where they run, for people.
    entries
        The entries of the fragments.
    driver
        Whether it is the commits.
    """

    title: str
    entries: tuple[str, ...]
    driver: bool = False


def stages_of(plan: Plan, in_executors: Collection[str] = ()) -> list[Stage]:
    """Return the stages of a batch, in order, if executors commit these states."""
    placed = place(plan, in_executors)
    levels = [tuple(spout.id for spout in plan.spouts), *placed.levels]
    processing = 1 + placed.processing
    stages = [
        Stage(f"stage {number}, in the workers", entries) for number, entries in enumerate(levels[:processing], 1)
    ]
    stages += [
        Stage(f"stage {number}, in the workers: commit", entries)
        for number, entries in enumerate(levels[processing:], processing + 1)
    ]
    commits = tuple(node.id for node in plan.commits if node.id not in placed.commits)
    if commits:
        stages.append(Stage("commit, in the driver, in this order", commits, driver=True))
    return stages
