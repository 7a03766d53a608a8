"""DRPC: requests that are answered from the states of a topology, in process or over HTTP.

Begin with `local.py` (`LocalDRPC`, the functions of a topology). `batching.py` answers waiting requests together, over states
as after one committed batch. `server.py` and `client.py` are the two ends of HTTP.
"""

from typing import TYPE_CHECKING, Any

from trident.drpc.batching import DRPCFunction
from trident.drpc.client import DRPCClient
from trident.drpc.local import LocalDRPC

if TYPE_CHECKING:
    from trident.drpc.server import DRPCServer

__all__ = ["DRPCClient", "DRPCFunction", "DRPCServer", "LocalDRPC"]


def __getattr__(name: str) -> Any:
    """Import the server when it is asked for: nothing else here needs its packages."""
    if name != "DRPCServer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trident.extras import needs_package

    with needs_package("the DRPC server", "drpc"):
        from trident.drpc.server import DRPCServer
    return DRPCServer
