"""From the declared graph to a plan that either runner executes."""

from trident.planner.plan import Exchange, Fragment, Plan, Sink, Step
from trident.planner.planner import make_plan
from trident.planner.request_plans import RequestPlan, make_request_plan

__all__ = ["Exchange", "Fragment", "Plan", "RequestPlan", "Sink", "Step", "make_plan", "make_request_plan"]
