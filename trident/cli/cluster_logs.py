"""`trident logs`: the log of a topology's driver, wherever it runs."""

from __future__ import annotations

import sys
import time

from trident.cli.console import problems, say
from trident.cluster.client.cluster_client import ClusterClient
from trident.cluster_errors import ClusterUnreachable, NoLeader, NoSuchTopology

__all__ = ["print_logs"]

_LOOK_S = 0.5


def print_logs(client: ClusterClient, topology: str, follow: bool) -> None:
    """Print the end of a driver's log; `follow`: and what is added to it, until Ctrl-C or until the topology has ended.

    When the topology gets another driver, its log follows from the beginning.
    """
    found = client.log(topology)
    _print(found["text"])
    while follow:
        if not found["text"]:
            time.sleep(_LOOK_S)
        try:
            found = client.log(topology, found["next"])
        except NoSuchTopology:
            say(f"topology {topology!r} has ended", console=problems())
            return
        except (ClusterUnreachable, NoLeader) as error:
            say(f"{error}; trying again", console=problems())
            time.sleep(_LOOK_S)
            continue
        _print(found["text"])


def _print(text: str) -> None:
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()
