"""The stores that topologies keep their state in, one package a store, of which none imports another: see its `state.py`."""
