"""`make proof`: each promise of exactness as a row of one table, at full scale: `python -m tests.proof`.

Begin with `proof_rows.py`, the table; `proof_row.py` runs a row, `proof_table.py` shows what came of it.
"""
