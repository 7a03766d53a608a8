"""From the declared graph to a plan that either runner executes.

Begin with `plan.py`, the plan as data and the matrix of what is exact, then `planner.py` (`make_plan`).
"""

from trident.plan.plan import Exchange, Fragment, Plan, Sink, Step
from trident.plan.planner import RequestPlan, make_plan, make_request_plan

__all__ = ["Exchange", "Fragment", "Plan", "RequestPlan", "Sink", "Step", "make_plan", "make_request_plan"]
