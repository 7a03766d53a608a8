"""The driver: starts a topology, runs its batches from definition to commit, recovers.

Begin with `running.py` (`start`), then `loop.py`: when a batch starts, commits, fails. `sources.py` says what a batch contains,
`attempts.py` processes and commits it, `execution.py` chooses the threads. `recovery.py` compares log and stores at the start.
"""
