"""What a package holds, found out in a process of its own: `-m trident.cluster.code.package_description FOLDER TARGET ANSWER`.

The code is loaded from a copy of what is packed, so what is missing there is told before anything is sent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trident.cluster.cluster_errors import BadPackage
from trident.cluster.code.package_loading import load_from
from trident.cluster.code.package_manifest import ComponentFacts
from trident.errors import TridentError
from trident.planner.meaning import meaning_of
from trident.runtime.reading.targets import NoSuchTarget
from trident.storm import StormTopology
from trident.topology import TridentTopology

__all__ = ["describe_package", "description_of"]

_STDERR = 2  # the answer is a file: a module may print what it likes


def describe_package(folder: Path, target: str, answer: Path) -> dict[str, Any]:
    """Load a target from a folder, in another process, and return `kind`, `name`, `components` and `meaning`.

    Raises
    ------
    NoSuchTarget
        The folder has no such module, or that has no such topology.
    BadPackage
        The code fails, or its process ends.
    """
    # -P: neither this process's folder nor that of the user hides what the package lacks.
    command = [sys.executable, "-P", "-m", __name__, str(folder), target, str(answer)]
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=_STDERR, check=False)
    if not answer.exists():
        raise BadPackage(f"{target}: the process that loaded it ended with exit code {done.returncode}; see above")
    found: dict[str, Any] = json.loads(answer.read_bytes())
    if "no_target" in found:
        raise NoSuchTarget(found["no_target"])
    if "error" in found:
        raise BadPackage(found["error"])
    return found


def description_of(topology: TridentTopology | StormTopology) -> dict[str, Any]:
    """Return the facts of a topology for a manifest, as plain data."""
    if isinstance(topology, TridentTopology):
        meaning = meaning_of(topology.graph())
        return {"kind": "trident", "name": topology.name, "components": {}, "meaning": asdict(meaning)}
    components = {
        **{name: ComponentFacts("spout", each.executors, each.tasks) for name, each in topology.spouts.items()},
        **{name: ComponentFacts("bolt", each.executors, each.tasks) for name, each in topology.bolts.items()},
    }
    plain = {name: asdict(facts) for name, facts in components.items()}
    return {"kind": "bolts", "name": "", "components": plain, "meaning": {}}


def _main(folder: str, target: str, answer: str) -> None:
    try:
        found = description_of(load_from(Path(folder), target))
    except NoSuchTarget as error:
        found = {"no_target": str(error)}
    except TridentError as error:
        found = {"error": str(error) or type(error).__name__}
    Path(answer).write_text(json.dumps(found), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # threads that the module has started do not hold up the end


if __name__ == "__main__":
    _main(*sys.argv[1:])
