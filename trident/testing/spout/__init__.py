"""A contract for spouts, and `spout_suite` without pytest: `spout_contract.py`; what users give: `source_under_test.py`."""
