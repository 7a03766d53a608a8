"""From a processed batch to the states, in the driver and in Spark's executors; and the tuples that were left out.

Begin with `committer.py`, which takes a batch from state to state; `partition_commit.py` makes every call into a state,
partition by partition. `committing.py` is what a task does where executors commit: the driver decides for which states
(`trident/runtime/start/placements.py`), the planner in which stages (`trident/planner/placing.py`).
`dead_letters.py` stores tuples that were left out; `replays.py` chooses which of them the next batch puts back.
"""
