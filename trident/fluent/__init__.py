"""Families of calls that `Stream`, `GroupedStream` and `TridentTopology` have, one module a family.

Begin with `base.py`: a call checks its arguments and adds a node to its `Declaration`. Users import from `trident`.
"""
