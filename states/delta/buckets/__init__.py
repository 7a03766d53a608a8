"""Rows by key beyond memory: files in the order of a hash of the key, and later changes in memory.

Begin with `large_values.py`.
"""
