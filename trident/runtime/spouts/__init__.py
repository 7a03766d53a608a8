"""Spouts as the loop sees them, whatever interface their authors implemented. Begin with `batch_spouts.py`."""
