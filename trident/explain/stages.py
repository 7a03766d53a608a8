"""Which part of a plan runs when: the stages of a batch in the workers, then its commits in the driver."""

from __future__ import annotations

from dataclasses import dataclass

from trident.planner import Plan

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


def stages_of(plan: Plan) -> list[Stage]:
    """Return the stages of a batch, in order."""
    levels = [tuple(spout.id for spout in plan.spouts), *plan.levels]
    stages = [Stage(f"stage {number}, in the workers", entries) for number, entries in enumerate(levels, 1)]
    if plan.commits:
        commits = tuple(node.id for node in plan.commits)
        stages.append(Stage("commit, in the driver, in this order", commits, driver=True))
    return stages
