"""`make proof`: each promise of exactness as a row of one table, at full scale: `python -m tests.proof`.

Begin with `proof_rows.py`, the table; `proof_table.py` runs its rows, and shows what came of them.
"""
