"""From a processed batch to the states.

Begin with `committer.py`; `entries.py` has what a batch gives to each partition, `partitions.py` which one a key lives in.
"""
