"""Makes the package of a topology, a zip named by its SHA-256, and loads the topology of one; reads its settings."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trident.cluster.package_archive import MANIFEST, ComponentFacts, PackageManifest, archive_of, files_of, find_module
from trident.cluster_state.cluster_records import TopologyKind
from trident.config import Config
from trident.errors import BadPackage, ConfigError, TridentError
from trident.plan.meaning import meaning_of
from trident.setting_types import nest_spark_conf
from trident.spark.shipping import ship_modules_of
from trident.storm import StormConfig, StormTopology, TopologyBuilder
from trident.targets import NoSuchTarget, folder_of, load_one_of, parts_of
from trident.topology import TridentTopology

_KINDS = (TridentTopology, TopologyBuilder, StormTopology)
_LOCAL = ("-r", "--requirement", "-c", "--constraint", "-e", "--editable")  # of pip's options
_STDERR = 2  # the answer is a file: a module may print what it likes
_CLUSTERS = {
    "takeover": "a driver of a cluster always takes the log over",
    "name": "the name is given when a topology is submitted (--name)",
    "topology.name": "the name is given when a topology is submitted (--name)",
}


@dataclass(frozen=True)
class TopologyPackage:
    """A package: its manifest and its bytes. The same code gives the same bytes, whenever and wherever it is packed."""

    manifest: PackageManifest
    data: bytes
    log_dir: str | None = None  # the log that its own settings name; None: none

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def make_package(target: str, include: Sequence[str] = (), requirements: Path | None = None) -> TopologyPackage:
    """Pack the code of `MODULE:TOPOLOGY` or `FILE.py:TOPOLOGY`, after it was loaded from a copy of what is packed.

    `include`: is packed although no import names it, relative to the folder of the topology. `requirements`: as pip reads it.
    """
    module, attribute = parts_of(target)
    folder, needed = folder_of(target), "" if requirements is None else _requirements(requirements)
    is_file = module.endswith(".py")
    if is_file and not (folder / Path(module).name).is_file():
        raise NoSuchTarget(f"there is no file {module!r} (looked in {Path.cwd()})")
    inside = f"{Path(module).name if is_file else module}:{attribute}"
    top = Path(module).stem if is_file else module.partition(".")[0]
    if find_module(folder, top) is None and not needed:
        raise NoSuchTarget(
            f"there is no module {top!r} in {folder}, whose code would be packed. If it is installed, name its package in a "
            "file of requirements (--requirements), so that the machines of the cluster install it"
        )
    # Read once: what is hashed, loaded and sent is the same, whatever an editor does meanwhile.
    files = {place: path.read_bytes() for place, path in files_of(folder, top, include).items()}
    if MANIFEST in files:
        raise BadPackage(f"{folder} has a file {MANIFEST}; a package has its manifest there")
    manifest, log_dir = _describe_copy(folder, inside, needed, files)
    return TopologyPackage(manifest, archive_of(manifest, files), log_dir)


def _describe_copy(
    folder: Path, target: str, requirements: str, files: Mapping[str, bytes]
) -> tuple[PackageManifest, str | None]:
    with tempfile.TemporaryDirectory(prefix="trident-package-") as made:
        copy = Path(made).resolve() / "code"
        copy.mkdir()
        for place, data in files.items():
            path = copy / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        try:
            description = describe_package(copy, target, copy.parent / "answer.json")
        except (BadPackage, NoSuchTarget) as error:
            # The copy is gone when the message is read.
            text = str(error).replace(str(copy), str(folder))
            hint = _missing(text, folder, files)
            if requirements and not hint and ("No module named" in text or "there is no module" in text):
                hint = ". The topology is loaded here before it is sent: install its requirements here too"
            raise type(error)(f"{text}{hint}") from None
    manifest = PackageManifest(
        target=target,
        kind=description["kind"],
        name=description["name"] or Path(target.rpartition(":")[0]).stem.rpartition(".")[2],
        requirements=requirements,
        components={name: ComponentFacts(**facts) for name, facts in description["components"].items()},
        meaning=description["meaning"],
        files={place: hashlib.sha256(data).hexdigest() for place, data in files.items()},
    )
    return manifest, description.get("log_dir")


def _missing(text: str, folder: Path, files: Mapping[str, bytes]) -> str:
    """Return a hint if a message names something of the folder that was not packed."""
    for path in sorted(folder.iterdir(), key=lambda path: (-len(path.name), path.name)):
        named = path.stem if path.suffix == ".py" else path.name
        packed = any(place == path.name or place.startswith(f"{path.name}/") for place in files)
        if not packed and len(named) > 1 and (f"'{named}'" in text or str(path) in text):
            return (
                f". {path.name} is in {folder} but not in the package, which has imported modules and whole packages; "
                f"add it with --include {path.name}"
            )
    return ""


def _requirements(file: Path) -> str:
    """Return the text of a file of requirements; what names another file of this machine is refused."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadPackage(f"--requirements {file}: cannot be read: {error}") from error
    lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    for line in lines:
        if _is_local(line):
            raise BadPackage(
                f"{file}: {line!r} refers to this machine, but supervisors install the requirements on theirs. Name "
                "packages with versions, or a wheel with a URL"
            )
    return "".join(f"{line}\n" for line in lines)


def _is_local(line: str) -> bool:
    word, has_url = line.partition(" ")[0], "://" in line
    is_file = word.startswith(".") or (not has_url and ("/" in word or word.endswith((".whl", ".zip", ".tar.gz"))))
    option = word.partition("=")[0] if word.startswith("--") else word[:2]  # what follows a short one may touch it
    is_local = is_file or option in _LOCAL or (option in ("-f", "--find-links") and not has_url)
    return is_local or re.search(r"(^|[\s@=])file:", line) is not None


def describe_package(folder: Path, target: str, answer: Path) -> dict[str, Any]:
    """Load a target from a copy of what is packed, in another process, before it is sent; return what it is."""
    # -P: neither this process's folder nor the user's hides what the package lacks.
    command = [sys.executable, "-P", "-m", __name__, str(folder), target, str(answer)]
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=_STDERR, check=False)
    if not answer.exists():
        raise BadPackage(f"{target}: the process that loaded it ended with exit code {done.returncode}; see above")
    description: dict[str, Any] = json.loads(answer.read_bytes())
    if "no_target" in description:
        raise NoSuchTarget(description["no_target"])
    if "error" in description:
        raise BadPackage(description["error"])
    return description


def description_of(topology: TridentTopology | StormTopology) -> dict[str, Any]:
    if isinstance(topology, TridentTopology):
        meaning = meaning_of(topology.graph())
        log_dir = topology.settings().log_dir
        return {
            "kind": "trident", "name": topology.name, "components": {}, "meaning": meaning.plain(), "log_dir": log_dir,
        }  # fmt: skip
    components = {
        name: {"kind": kind, "executors": each.executors, "tasks": each.tasks}
        for kind, declared in (("spout", topology.spouts), ("bolt", topology.bolts))
        for name, each in declared.items()
    }
    return {"kind": "bolts", "name": "", "components": components, "meaning": {}}


def settings_of(
    kind: TopologyKind, name: str, conf: Mapping[str, str], workers: int | None = None
) -> Config | StormConfig:
    """Read settings of a topology that was submitted as `name`; those whose names begin with `spark.` are Spark's."""
    for key, why in _CLUSTERS.items():
        if key in conf and kind == ("trident" if key == "takeover" else "bolts"):
            raise ConfigError(f"{key} cannot be set here: {why}")
    values = nest_spark_conf(conf)
    if kind == "trident":
        return Config.of(values)
    values["name"] = name
    if workers is not None:
        # Two names of one setting: only one may be there.
        values.pop("topology.workers", None)
        values["workers"] = workers
    return StormConfig.of(values)


def load_package(folder: Path, manifest: PackageManifest, name: str = "") -> TridentTopology | StormTopology:
    """Import the topology of a package from the folder that it was unpacked into."""
    # The name under which it was submitted names its log and its keys in shared stores.
    manifest.check_versions()
    try:
        topology = load_from(folder, manifest.target)
    except NoSuchTarget as error:
        raise BadPackage(f"the package does not hold {manifest.target}: {error}") from error
    kind = "trident" if isinstance(topology, TridentTopology) else "bolts"
    # What it may be asked to do, as by a rebalance, was decided by the manifest.
    if kind != manifest.kind:
        raise BadPackage(
            f"{manifest.target} was of kind {manifest.kind} when it was packed, and is of kind {kind} here"
        )
    if isinstance(topology, TridentTopology) and name:
        topology.name = name
    return topology


def load_from(folder: Path, target: str) -> TridentTopology | StormTopology:
    folder = folder.resolve()
    ship_modules_of(folder)
    topology: TridentTopology | TopologyBuilder | StormTopology = load_one_of(target, _KINDS, folder)
    return topology.create_topology() if isinstance(topology, TopologyBuilder) else topology


def _main(folder: str, target: str, answer: str) -> None:
    try:
        description = description_of(load_from(Path(folder), target))
    except NoSuchTarget as error:
        description = {"no_target": str(error)}
    except TridentError as error:
        description = {"error": str(error) or type(error).__name__}
    Path(answer).write_text(json.dumps(description), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # threads that the module has started do not hold up the end


if __name__ == "__main__":
    _main(*sys.argv[1:])
