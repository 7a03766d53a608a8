"""The process that runs one topology of a cluster.

Begin with `driver_main.py`; `orders.py` has what the cluster asks of it, and how both kinds of topologies do that.
"""
