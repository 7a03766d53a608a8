"""What the HTTP servers of DRPC, the page, Nimbus and metrics share.

Begin with `server_thread.py`; `guard.py` refuses requests.
"""
