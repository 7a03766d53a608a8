"""Running topologies: opened, checked, recovered; the life of a batch; commits; replays. Begin with `running.py`.

From a declared topology to one that is ready: `opened_topology.py`; `recovery.py` compares topology, log and stores,
`placements.py` says where states commit. The life of a batch: `loop.py`; `coordinator.py` says when a batch begins,
`sources.py` what it contains, `execution.py` processes and commits it, `retrying.py` decides after a failure. From a
processed batch to the states: `committer.py`, in executors `committing.py`; `dead_letters.py` stores tuples that were left
out. `foreach_batch.py` is the function that a query of Spark calls. `batch_replay.py` runs recorded batches again, with the
states aside in memory.
"""
