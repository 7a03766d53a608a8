"""What each step does to an Arrow table.

Begin with `applying.py` (`apply_step`, and what needs no Python call per row). `rows.py` calls the user's code, and
`key_columns.py` says which partition a key belongs to.
"""
