"""Trees of small nodes that several processes see and change: in one file of this machine, in ZooKeeper, in PostgreSQL."""
