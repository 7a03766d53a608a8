"""A supervisor: keeps the drivers alive that are assigned to its machine.

Begin with `machine_supervisor.py`; what happens to one driver is in `driver_slot.py`.
"""
