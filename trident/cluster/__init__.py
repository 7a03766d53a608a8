"""Keeps topologies running: a Nimbus that assigns them to machines, supervisors that keep their drivers alive.

Begin with `client.py`. Nimbus: `submissions.py` has what clients change, `assigning.py`, a function of values, who runs where;
`nimbus.py` asks it round after round. A machine: `machine_supervisor.py`, and `driver_slot.py` for one driver. That driver:
`driver_main.py`, and `driver_orders.py` for what is asked of it. Code travels as a `topology_package.py`.

What all know is in `trident.cluster_state`; each of them may be killed any time.
"""
