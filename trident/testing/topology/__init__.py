"""`TopologyTestDriver`: the loop of a running topology, one step at a time.

Begin with `driver.py`; `driver_points.py` has the points where a batch can be made to fail.
"""
