"""HTTP servers in a thread of this process, for DRPC and for the page.

Begin with `server_thread.py`; `connections.py` bounds what clients may hold.
"""

__all__ = ["LOOPBACK"]

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Addresses that only this machine reaches."""
