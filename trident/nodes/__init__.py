"""Trees of small nodes that several processes see and change: in a file of this machine, ZooKeeper, PostgreSQL, a bucket."""
