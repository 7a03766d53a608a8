"""From a processed batch to the states, in the driver and in Spark's executors; and the tuples that were left out.

Begin with `committer.py`, which takes a batch from state to state, and makes every call into one, partition by partition;
`entries.py` has the entries of a batch for each partition. `committing.py` is what a task does where executors commit: the
driver decides for which states (`trident/runtime/start/placements.py`), the planner in which stages
(`trident/planner/plan.py`).
`dead_letters.py` stores tuples that were left out; `replays.py` chooses which of them the next batch puts back.
"""
