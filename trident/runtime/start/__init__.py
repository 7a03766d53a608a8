"""From a declared topology to one that is ready to run: opened, checked, recovered.

Begin with `opened_topology.py`; `recovery.py` compares topology, log and stores, `placements.py` says where states commit.
"""
