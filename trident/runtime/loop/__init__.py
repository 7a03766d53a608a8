"""The life of a batch: when it begins, what it contains, where it is processed and committed, what follows a failure.

Begin with `loop.py`. `coordinator.py` says when a batch begins, `sources.py` what it contains, `execution.py` chooses
the threads, processes and commits it, `retrying.py` decides after a failure.
"""
