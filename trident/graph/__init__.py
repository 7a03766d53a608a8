"""The declared topology as frozen nodes; no engine object is in them.

Begin with `nodes.py`; `exchanges.py` has the nodes that bring tuples to other partitions.
"""
