"""The proof that a spout keeps its promises: a contract for pytest, and `spout_suite` without it.

Begin with `spout_suite.py` and `spout_promises.py`; `source_under_test.py` says what you give, `contract_*.py` have the checks,
`spout_schedules.py` random schedules with crashes.
"""
