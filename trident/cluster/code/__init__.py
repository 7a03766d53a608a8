"""Code that travels: a package of a topology, Nimbus's store of them, and a supervisor's folders of what it unpacked.

Begin with `topology_package.py`, which makes a package and loads its topology; `code_store.py` keeps and unpacks it.
"""
