"""What the HTTP servers of DRPC, the page, Nimbus and metrics share.

Begin with `server_thread.py`, whose `Guard` refuses requests.
"""
