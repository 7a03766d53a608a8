"""DRPC: requests that are answered from the states of a topology, in process or over HTTP.

Begin with `local.py` (`LocalDRPC`, the functions of a topology). `batching.py` answers waiting requests together, by the steps
of `requests.py`, over states as after one committed batch. `server.py` and `client.py` are the two ends of HTTP.
"""

from trident.drpc.batching import DRPCFunction
from trident.drpc.client import DRPCClient
from trident.drpc.local import LocalDRPC
from trident.drpc.server import DRPCServer

__all__ = ["DRPCClient", "DRPCFunction", "DRPCServer", "LocalDRPC"]
