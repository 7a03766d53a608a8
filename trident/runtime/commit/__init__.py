"""From a processed batch to the states.

Begin with `committer.py`; `entries.py` has the entries of a batch for each partition of a state.
"""
