"""Commits in Spark's executors: what a task of a batch's job does to one partition of a state.

Begin with `committing.py`. The driver decides which states these are (`trident/runtime/driver/placements.py`), the planner
which stages the job has (`trident/planner/placing.py`), and `SparkRunner` runs it.
"""
