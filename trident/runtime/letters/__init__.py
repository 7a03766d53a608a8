"""Dead letters: tuples that could not be processed, kept, and put back on request.

Begin with `dead_letters.py`; `replays.py` chooses what the next batch puts back.
"""
