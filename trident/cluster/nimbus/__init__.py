"""Nimbus: takes topologies from clients, assigns them to the slots of supervisors, and moves them when they are lost.

Begin with `submissions.py` for what clients change, with `assigning.py`, a function of values, for who runs where;
`nimbus.py` asks it round after round.
"""
