"""Families of calls that `Stream`, `GroupedStream` and `TridentTopology` have, one module a family.

Begin with `base.py`: a call checks its arguments and adds a node to its `Declaration`. `Stream` inherits the families of
`aggregating.py`, `repartitioning.py`, `selecting.py` and `windowing.py`; a topology's calls that take several streams are
functions of `combining.py`. Users import from `trident`, never from here.
"""
