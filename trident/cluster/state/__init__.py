"""What a cluster knows of itself, in ZooKeeper or in one SQLite file.

Begin with `cluster_state.py`: what is done with nodes, watches and sessions; `sqlite_nodes.py` or a ZooKeeper keeps
them. `storm_cluster_state.py` keeps the records of `cluster_records.py` in them.
"""
