"""What is left of a cluster on this machine when the file of its state was removed: said before an empty one begins."""

from __future__ import annotations

from pathlib import Path

from trident.cluster.code.code_store import CodeStore
from trident.cluster.state.cluster_address import STATE_FILE
from trident.cluster_errors import ClusterError
from trident.coordination.log_reader import exists

_MOST_NAMES = 10


def left_of(folder: Path) -> str:
    """Say what is in the folder of a cluster whose state is not there; "" if it is there, or nothing else is."""
    if (folder / STATE_FILE).exists():
        return ""
    place = folder / "transactional"
    logs = [each.name for each in place.iterdir() if exists(each)] if place.is_dir() else []
    names = sorted({*_names_of_packages(folder / "code"), *logs})
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    topologies = ", ".join(names[:_MOST_NAMES])
    return (
        f"the state of the cluster, {folder / STATE_FILE}, is gone, but not the code and the logs of {topologies}{more}. Bring "
        "the file back from a backup; or submit the topologies again under the names that they had: each goes on with its log, "
        "after its last recorded batch"
    )


def _names_of_packages(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    names, store = [], CodeStore(folder)
    for sha256 in store.hashes():
        try:
            names.append(store.manifest(sha256).name)
        except ClusterError:  # damaged
            continue
    return names
