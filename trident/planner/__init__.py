"""From the declared graph to a plan that either runner executes."""

from trident.planner.plan import Exchange, Fragment, Plan, Sink, Step
from trident.planner.planner import make_plan

__all__ = ["Exchange", "Fragment", "Plan", "Sink", "Step", "make_plan"]
