"""A Delta state that is too large for memory: its rows in files by a hash of the key, later changes in memory.

`docs/internals/delta-beyond-memory.md` says which files there are and in which order they are written. Begin with
`large_index.py`.
"""
