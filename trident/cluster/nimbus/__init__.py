"""Nimbus: takes topologies, assigns them to supervisors, and serves the page.

Begin with `nimbus.py`; `submissions.py` has what its clients ask for.
"""
