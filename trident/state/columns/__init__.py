"""Opaque numbers as arrays: a commit of many keys is a few operations on columns.

A store takes part with `multi_get_opaque` (`BackingMap`). `number_columns.py` applies the value rule and combines;
`number_table.py` is for stores that keep their values (or an index of them) in memory, `packed_structs.py` for stores of
bytes. This file imports neither NumPy nor Arrow, because every state imports it.
"""
