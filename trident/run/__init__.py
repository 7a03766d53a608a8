"""Running topologies: opened, checked, recovered; the life of a batch; commits; replays. Begin with `running.py`."""
