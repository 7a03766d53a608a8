"""Reading states while a topology writes them, in this process or another one.

Begin with `views.py` (a reader at one snapshot), then `state_reader.py` (a topology that another process runs).
"""
