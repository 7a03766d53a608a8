"""The life of a batch: when it begins, what it contains, where it is processed and committed, what follows a failure.

Begin with `loop.py`. `start_gate.py` says when a batch begins, `sources.py` what it contains, `attempts.py` processes and
commits it, `execution.py` chooses the threads, `retrying.py` decides after a failure.
"""
