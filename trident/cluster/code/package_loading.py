"""From the unpacked files of a package to the topology that it holds, in the process that is to run it."""

from __future__ import annotations

from pathlib import Path

from trident.cluster.code.package_manifest import PackageManifest
from trident.cluster_errors import BadPackage
from trident.runtime.reading import targets
from trident.spark.shipping import ship_modules_of
from trident.storm import StormTopology, TopologyBuilder
from trident.topology import TridentTopology

__all__ = ["load_from", "load_package"]

_KINDS = (TridentTopology, TopologyBuilder, StormTopology)


def load_package(folder: Path, manifest: PackageManifest, name: str = "") -> TridentTopology | StormTopology:
    """Import the topology of a package from the folder that it was unpacked into.

    The folder is searched first for modules, also by processes that this one starts, and the executors of a remote Spark get
    what is loaded from it. A Trident topology takes the `name` under which it was submitted, which names its log and its
    keys in shared stores.

    Raises
    ------
    BadPackage
        It was made by other versions, or does not hold the topology.
    TopologyError
        Its code fails.
    """
    manifest.check_versions()
    try:
        found = load_from(folder, manifest.target)
    except targets.NoSuchTarget as error:
        raise BadPackage(f"the package does not hold {manifest.target}: {error}") from error
    kind = "trident" if isinstance(found, TridentTopology) else "bolts"
    if kind != manifest.kind:
        raise BadPackage(
            f"{manifest.target} was of kind {manifest.kind} when it was packed, and is of kind {kind} here"
        )
    if isinstance(found, TridentTopology) and name:
        found.name = name
    return found


def load_from(folder: Path, target: str) -> TridentTopology | StormTopology:
    """Import what a target names, from a folder; of a builder, the topology that it creates."""
    folder = folder.resolve()
    ship_modules_of(folder)
    found: TridentTopology | TopologyBuilder | StormTopology = targets.load_one_of(target, _KINDS, folder)
    return found.create_topology() if isinstance(found, TopologyBuilder) else found
