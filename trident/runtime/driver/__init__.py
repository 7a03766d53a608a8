"""The driver: starts a topology, leads its batches through their lives, recovers.

Begin with `running.py` (`start`), then `loop.py`: when a batch starts, commits, fails. `recovery.py` compares log and
stores at the start.
"""
