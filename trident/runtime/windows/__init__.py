"""Windows: what is kept between batches, and what fires.

Begin with `firing.py` (one batch of a window); `grid.py` says where windows lie, `kept_windows.py` what the state holds.
"""
