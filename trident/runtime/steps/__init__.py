"""What each step does to an Arrow table.

Begin with `applying.py` (`apply_step`). `rows.py` calls the user's code; `kernels.py` says what needs no Python call per row,
and `key_columns.py` which partition a key belongs to.
"""
