"""`TopologyTestDriver`: the loop of a running topology, one step at a time.

Begin with `driver.py`; `watched_batches.py` has the points where a batch can be made to fail, `stand_ins.py` spouts and
states in place of declared ones.
"""
