"""The proof that a spout keeps its promises: a contract for pytest, and `spout_suite` without it.

Begin with `spout_contract.py`, which has random schedules with crashes too, and `source_under_test.py`, which says what you
give; the bases of the contract have most checks.
"""
