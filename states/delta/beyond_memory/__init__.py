"""A Delta state that is too large for memory (`docs/internals/delta-beyond-memory.md`); begin with `large_index.py`."""
