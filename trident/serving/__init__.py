"""HTTP servers in a thread of this process, for DRPC and for the page.

Begin with `server_thread.py`; `connections.py` bounds what clients may hold, `strangers.py` says whose requests are refused.
"""
