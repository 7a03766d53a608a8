"""From a processed batch to the states.

Begin with `committer.py`, which makes every call into a state; `entries.py` has the entries of a batch for each partition of a
state, `flow.py` the rows between two states.
"""
