"""What the HTTP servers share: those of DRPC, of the page, of Nimbus and of metrics.

Begin with `server_thread.py`; `connections.py` bounds what clients may hold, `guard.py` and `strangers.py` say whose requests
are refused.
"""
