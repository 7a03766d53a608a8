"""Keeps topologies running: a Nimbus assigns them to machines, supervisors keep their drivers alive. Begin with `client.py`."""
