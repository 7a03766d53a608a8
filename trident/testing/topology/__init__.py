"""`TopologyTestDriver`: the loop of a running topology, one step at a time.

Begin with `driver.py`; `stand_ins.py` has the points where a batch can be made to fail, and spouts and states in place of
declared ones.
"""
