"""What the HTTP servers of DRPC, the page, Nimbus and metrics share.

Begin with `server_thread.py`; `guard.py` and `strangers.py` say whose requests are refused.
"""
