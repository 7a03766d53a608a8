"""What a cluster knows of itself, in ZooKeeper or in one SQLite file.

Begin with `cluster_state.py`: nodes, watches and sessions. `storm_cluster_state.py` keeps the records of
`cluster_records.py` in them.
"""
