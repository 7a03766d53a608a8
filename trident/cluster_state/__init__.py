"""What a cluster knows of itself, as records in a tree of nodes. Begin with `storm_cluster_state.py`."""
