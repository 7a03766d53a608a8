"""Reads states while a topology writes them: begin with `views.py`."""
