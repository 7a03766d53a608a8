"""States: the stores that topologies keep their state in, one module each."""
