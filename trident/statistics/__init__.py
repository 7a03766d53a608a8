"""What both kinds of topologies say of themselves: totals in windows, errors, pages in the shape of Storm UI.

Trident's operations are counted by `trident/runtime/engine/step_figures.py`, spouts and bolts by `trident/storm/statistics/`.
Begin with `operation_statistics.py`, or with `heartbeats.py` and `reported_errors.py`: what a cluster is told of a topology.
"""
