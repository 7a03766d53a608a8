"""The history again: `verifying.py` proves totals and explains values, `rehearsing.py` runs new code on old batches."""
