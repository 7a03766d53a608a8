"""From a processed batch to the states.

Begin with `committer.py`; `entries.py` has what a batch gives to each partition of a state.
"""
