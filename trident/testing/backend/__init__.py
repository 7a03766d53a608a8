"""The proof that a back-end keeps its promises: contracts for pytest, and `backend_suite` without it.

Begin with `suite.py` and `store_under_test.py`; `*_contract*.py` have the checks, `schedules.py` random schedules with crashes.
"""
