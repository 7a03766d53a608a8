"""Opaque numbers as arrays: a commit of many keys is a few operations on columns.

Begin with `columnar_map.py`, the ability that a store declares. `number_columns.py` applies the value rule and combines;
`number_table.py` and `kept_values.py` are for stores that keep their values (or an index of them) in memory. This file
imports neither NumPy nor Arrow, because every state imports it.
"""

from trident.state.columns.columnar_map import ColumnarMap

__all__ = ["ColumnarMap"]
