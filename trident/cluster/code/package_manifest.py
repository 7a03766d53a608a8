"""The manifest of a package of code, and loading the topology that it names."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from trident import __version__
from trident.cluster.state.cluster_records import TopologyKind
from trident.cluster_errors import BadPackage
from trident.runtime.reading import targets
from trident.spark.shipping import ship_modules_of
from trident.storm import StormTopology, TopologyBuilder
from trident.topology import TridentTopology

MANIFEST = "trident-package.json"
"""The name of the manifest within a package."""

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The minor version of this Python."""

_VERSION = 1


@dataclass(frozen=True)
class ComponentFacts:
    """A spout or bolt: how many executors it asks for, and how many tasks it has, which no rebalance changes."""

    kind: str
    executors: int
    tasks: int


@dataclass(frozen=True)
class PackageManifest:
    """What a package says about itself.

    `target`: `MODULE:TOPOLOGY`, or `FILE.py:TOPOLOGY` with a file at the top of the package.
    `name`: the name that the topology has unless it is submitted under another one.
    `trident`, `python`: the version of Trident and the minor version of Python that made it.
    `requirements`: the text of a requirements file; "" if there is none.
    `components`: of spouts and bolts, by id.
    `meaning`: of Trident: what its states and streams mean, as `trident.planner.meaning` has it: `{"states": …, "streams": …}`.
    `files`: the SHA-256 of each file, by its path in the package.
    """

    target: str
    kind: TopologyKind
    name: str
    trident: str = __version__
    python: str = PYTHON
    requirements: str = ""
    components: Mapping[str, ComponentFacts] = field(default_factory=dict)
    meaning: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the manifest as JSON: the same facts give the same bytes."""
        return json.dumps({"version": _VERSION, **asdict(self)}, sort_keys=True, indent=1).encode()

    @classmethod
    def of_bytes(cls, data: bytes) -> Self:
        """Return the manifest that `to_bytes` gave.

        Raises `BadPackage`: these bytes are no manifest, or one of a later version of the software.
        """
        try:
            values = json.loads(data)
            if values["version"] != _VERSION:
                raise BadPackage(
                    f"the package has a manifest of version {values['version']}; this version of the software reads "
                    f"{_VERSION}. Use the same version of Trident everywhere"
                )
            return cls._of(values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadPackage(f"the package has no readable manifest ({MANIFEST}): {error!r}") from error

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> Self:
        components = {str(name): ComponentFacts(**facts) for name, facts in values["components"].items()}
        texts = {name: str(values[name]) for name in ("target", "name", "trident", "python", "requirements")}
        if values["kind"] not in ("trident", "bolts"):
            raise ValueError(f"kind {values['kind']!r}")
        return cls(
            kind=values["kind"],
            components=components,
            meaning={what: dict(values["meaning"].get(what, {})) for what in ("states", "streams")},
            files={str(path): str(digest) for path, digest in values["files"].items()},
            **texts,
        )

    def check_versions(self) -> None:
        """Refuse to run code that was made for another minor version of Python or another release of Trident.

        Of Trident the first two numbers must agree: what a topology may declare does not change within them.

        Raises `BadPackage`: they differ; the message has both versions.
        """
        if self.python != PYTHON:
            raise BadPackage(
                f"the package of {self.target} was made with Python {self.python}, and this machine runs {PYTHON}. Submit "
                f"it with Python {PYTHON}, or run the cluster's daemons with {self.python}"
            )
        if self.trident.split(".")[:2] != __version__.split(".")[:2]:
            raise BadPackage(
                f"the package of {self.target} was made with Trident {self.trident}, and this machine has {__version__}. "
                "Install the same version everywhere, then submit it again"
            )


_KINDS = (TridentTopology, TopologyBuilder, StormTopology)


def load_package(folder: Path, manifest: PackageManifest, name: str = "") -> TridentTopology | StormTopology:
    """Import the topology of a package from the folder that it was unpacked into.

    The folder is searched first for modules, also by processes that this one starts, and the executors of a remote Spark get
    what is loaded from it. A Trident topology takes the `name` under which it was submitted, which names its log and its
    keys in shared stores.

    Raises `BadPackage`: it was made by other versions, or does not hold the topology.
    Raises `TopologyError`: its code fails.
    """
    manifest.check_versions()
    try:
        topology = load_from(folder, manifest.target)
    except targets.NoSuchTarget as error:
        raise BadPackage(f"the package does not hold {manifest.target}: {error}") from error
    kind = "trident" if isinstance(topology, TridentTopology) else "bolts"
    if kind != manifest.kind:
        raise BadPackage(
            f"{manifest.target} was of kind {manifest.kind} when it was packed, and is of kind {kind} here"
        )
    if isinstance(topology, TridentTopology) and name:
        topology.name = name
    return topology


def load_from(folder: Path, target: str) -> TridentTopology | StormTopology:
    """Import what a target names, from a folder; of a builder, the topology that it creates."""
    folder = folder.resolve()
    ship_modules_of(folder)
    topology: TridentTopology | TopologyBuilder | StormTopology = targets.load_one_of(target, _KINDS, folder)
    return topology.create_topology() if isinstance(topology, TopologyBuilder) else topology
