"""Runs spouts, bolts and ackers: the same code with threads, by hand in tests, and in Spark's workers.

Begin with `executors.py` and `acker.py`; `collectors.py` draws the edges of the tuple trees.
"""
