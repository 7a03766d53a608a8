"""The proof that a spout keeps its promises: a contract for pytest, and `spout_suite` without it.

Begin with `spout_suite.py` and `source_under_test.py`, which says what you give; `spout_contract.py` and its bases have the
checks, `spout_schedules.py` random schedules with crashes.
"""
