"""Keeps topologies running: a Nimbus that assigns them to machines, supervisors that keep their drivers alive.

Begin with `client.py`, or with `nimbus/assigning.py`: what all know is in `trident.cluster_state`; each may be killed any time.
"""
