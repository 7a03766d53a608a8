"""What the proofs of back-ends and of spouts share: promises that checks belong to, comparing, and the report.

Begin with `expecting.py`; `findings.py` has the report.
"""
