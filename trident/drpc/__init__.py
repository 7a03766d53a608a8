"""DRPC: requests that are answered from the states of a topology, in process or over HTTP."""

from trident.drpc.client import DRPCClient
from trident.drpc.local import DRPCFunction, LocalDRPC
from trident.drpc.server import DRPCServer

__all__ = ["DRPCClient", "DRPCFunction", "DRPCServer", "LocalDRPC"]
