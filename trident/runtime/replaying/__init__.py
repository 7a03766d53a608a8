"""Runs a topology's recorded batches again in this process, with its states aside in memory; nothing is written anywhere.

Begin with `batch_replay.py`, then `verifying.py` and `rehearsing.py`, which ask it.
"""
