"""Whether new code may go on with the log of a topology: what its package says that it means, against what the log says."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from trident.cluster.code.package_manifest import PackageManifest
from trident.cluster_errors import UpgradeRefused
from trident.coordination.log_address import open_reader
from trident.errors import LogError
from trident.planner.meaning import Meaning, changes, dropped

__all__ = ["UpgradeCheck", "check_upgrade"]


@dataclass(frozen=True)
class UpgradeCheck:
    """What a check found.

    Attributes
    ----------
    compared
        Whether there was a log to compare with.
    notes
        What the user should know: why there was none, which states are no longer declared.
    """

    compared: bool
    notes: tuple[str, ...] = ()


def check_upgrade(name: str, manifest: PackageManifest, log_dir: str, allow_changes: bool) -> UpgradeCheck:
    """Compare the meaning of a package with the log of the topology that it is for.

    The driver compares again when it starts, with what it loads itself. Nothing of the package is run here.

    Raises
    ------
    UpgradeRefused
        A state or a stream means something else than the log was written with, and `allow_changes` is not set.
    """
    now = Meaning(manifest.meaning.get("states", {}), manifest.meaning.get("streams", {}))
    try:
        before = _recorded(log_dir)
    except LogError as error:
        return UpgradeCheck(False, (f"not compared with the log: {error}. The driver does that when it starts",))
    if before is None:
        return UpgradeCheck(False, (f"not compared with the log: there is none in {log_dir} yet",))
    found = changes(before, now)
    if found and not allow_changes:
        listed = "\n".join(f"  {change}" for change in found)
        raise UpgradeRefused(
            f"the new code of topology {name!r} does not fit its log:\n{listed}\nNothing was changed; the topology runs on. "
            "Submit it under another name, or allow it with --conf allow_changed_topology=true, if values of both kinds "
            "may be in one state"
        )
    notes = [f"{change}; taken as it is, because allow_changed_topology is set" for change in found]
    notes += [f"{each} of the log is no longer declared; it stays as it is" for each in dropped(before, now)]
    return UpgradeCheck(True, tuple(notes))


def _recorded(log_dir: str) -> Meaning | None:
    with closing(open_reader(log_dir)) as reader:
        if not reader.is_there():
            return None
        declared = reader.refresh().declared
    return Meaning(declared.get("states", {}), declared.get("streams", {}))
