"""The client of a session with ZooKeeper: how it connects, and as whom."""

from __future__ import annotations

import logging
import math
import os
from typing import Any

from trident.errors import EnvironmentProblem, LogError
from trident.zookeeper_address import ZooKeeperAddress

__all__ = ["client_of", "refused"]

AUTH = "TRIDENT_ZOOKEEPER_AUTH"
_TRIES = 3  # to connect, while a session lasts

_logger = logging.getLogger(__name__)
_logger.setLevel(logging.CRITICAL)  # kazoo logs each vain attempt; what users need to know the connection says


def refused(address: ZooKeeperAddress) -> LogError:
    """Return the error of a request that the access control of ZooKeeper refuses."""
    return LogError(
        f"ZooKeeper refuses access to {address}: its access control list (ACL) does not allow it. Give the "
        f"credentials that the list names as {AUTH}=digest:USER:PASSWORD, or name another path"
    )


def client_of(address: ZooKeeperAddress, session_s: float) -> Any:
    """Return a client that is not yet started; `EnvironmentProblem` if kazoo is missing."""
    try:
        from kazoo.client import KazooClient
        from kazoo.handlers.threading import SequentialThreadingHandler
        from kazoo.retry import KazooRetry
        from kazoo.security import CREATOR_ALL_ACL
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "kazoo":
            raise
        raise EnvironmentProblem(
            f"a log in ZooKeeper needs the package kazoo ({error}); pip install 'trident-spark[zookeeper]'"
        ) from error

    class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
        def create_connection(self, *words: Any, timeout: float, **names: Any) -> Any:
            # So that one machine that is gone does not take all the time there is: a session's, or that of the start.
            return super().create_connection(*words, timeout=timeout / len(hosts), **names)

    # A server that is being started may take a request and never answer it. kazoo waits for an answer as long as a session
    # lasts, divided by the number of servers; so one of which there are few is named several times.
    hosts = address.hosts.split(",")
    hosts *= math.ceil(_TRIES / len(hosts))
    handler, (scheme, _, credentials) = Handler(), os.environ.get(AUTH, "").partition(":")
    return KazooClient(
        ",".join(hosts),
        timeout=session_s,
        handler=handler,
        logger=_logger,
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=0.5, sleep_func=handler.sleep_func),
        auth_data=[(scheme, credentials)] if scheme else None,
        default_acl=CREATOR_ALL_ACL if scheme else None,
    )
