"""What each step does to an Arrow table. Begin with `apply_step` in `applying.py`; `rows.py` calls the user's code."""
