"""What a cluster knows of itself, in ZooKeeper, in PostgreSQL, in a bucket or in one SQLite file.

Begin with `storm_cluster_state.py`: what is done with nodes, watches and sessions, which `trident.nodes` keeps, and how the
records of `cluster_records.py` are kept in them.
"""
