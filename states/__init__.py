"""States: the stores that topologies keep their state in, one package a store.

Modules of one name have one role wherever a store has them: `state.py` the class that topologies name, `options.py` its
options, `map.py` the backing map, `fence.py` the sentinel and who may write, `layout.py` what is stored under which key.
What a driver's errors mean stands beside its connection. Begin with `state.py`. No store imports another one.
"""
