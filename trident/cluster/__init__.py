"""Keeps topologies running: a Nimbus that assigns them to machines, supervisors that keep their drivers alive.

Begin with `state/cluster_state.py`: what all of them know is stored there, and each of them may be killed at any time.
"""
