"""From the declared graph to a plan that either runner executes.

Begin with `plan.py`, the plan as data, then `planner.py` (`make_plan`), which decides which steps run in one task.
The matrix of what is exact is in `plan.py`, too; `meaning.py` says which parts of a topology a log depends on.
"""

from trident.plan.plan import Exchange, Fragment, Plan, Sink, Step
from trident.plan.planner import RequestPlan, make_plan, make_request_plan

__all__ = ["Exchange", "Fragment", "Plan", "RequestPlan", "Sink", "Step", "make_plan", "make_request_plan"]
