"""What the proofs of back-ends and of spouts share: their promises, checks as methods of contracts, and the report.

Begin with `contract.py`, the promises and the base of all checks; `suite.py` makes them and reports.
"""
