"""What a cluster knows of itself, in ZooKeeper, in PostgreSQL or in one SQLite file.

Begin with `cluster_state.py`: what is done with nodes, watches and sessions. `trident.nodes` keeps them;
`storm_cluster_state.py` keeps the records of `cluster_records.py` in them.
"""
