"""The folder of a demo: the topology as a file of its own, which text it counts, the counts and the log."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trident.cli.demo_text import DemoText
from trident.coordination.lock import held_by, list_log
from trident.coordination.log_state import LogState
from trident.coordination.transaction_log import LogReader, exists
from trident.errors import LogHeldError, StateError

__all__ = ["DemoFolder"]

_BATCHES = 32  # about so many, whatever the amount of text
_BATCH_BYTES = (1 << 10, 8 << 20)

_TOPOLOGY = '''\
"""The topology that `trident demo` runs. `demo.json` beside this file names the text; `count` is a Delta table."""

import json
from pathlib import Path

from spouts import TextFileSpout
from states.delta import DeltaState
from trident import TridentTopology
from trident.operations import Count, Split

here = Path(__file__).resolve().parent
demo = json.loads((here / "demo.json").read_text(encoding="utf-8"))

topology = TridentTopology("word-count")
word_counts = (
    topology.new_stream("lines", TextFileSpout(demo["files"], max_batch_bytes=demo["max_batch_bytes"], tail_idle_s=0))
    .each("line", Split(), "word")
    .group_by("word")
    .persistent_aggregate(DeltaState.opaque(here / "count"), Count(), "count")
)
'''


@dataclass(frozen=True)
class DemoFolder:
    """The folder of a demo; nothing outside of `path` is written."""

    path: Path

    @property
    def module(self) -> Path:
        """The file that holds the topology."""
        return self.path / "word_count.py"

    @property
    def target(self) -> str:
        """The topology, as the command line has it."""
        return f"{_near(self.module)}:topology"

    @property
    def log_dir(self) -> Path:
        """The folder of the transaction log."""
        return self.path / "log"

    @property
    def delta_log(self) -> Path:
        """Where the Delta table of the state's changes records its commits."""
        return self.path / "count" / "_trident" / "changes" / "_delta_log"

    def clear(self) -> None:
        """Forget an earlier demo; refused if there is none, or if it runs."""
        if not self.path.exists():
            return
        self._check_ours()
        claims = list_log(self.log_dir).claims if self.log_dir.is_dir() else []
        holder = held_by(self.log_dir, claims[-1]) if claims else None
        if holder is not None:
            raise LogHeldError(str(self.log_dir), holder)
        shutil.rmtree(self.path)

    def prepare(self, paths: Sequence[str], text: DemoText) -> int:
        """Write the topology and what it reads; return the size of a batch in bytes.

        Raises
        ------
        StateError
            The folder holds something else, or the counts of other text.
        """
        self._check_ours()
        known = self._known()
        if known and known["paths"] != list(paths):
            raise StateError(
                f"{_near(self.path)} has counted the words of {_names(known['paths'])}, not of {_names(paths)}. "
                "Start afresh with --fresh, or keep these counts elsewhere with --state-dir"
            )
        size = int(known.get("max_batch_bytes") or min(max(text.size // _BATCHES, _BATCH_BYTES[0]), _BATCH_BYTES[1]))
        self.path.mkdir(parents=True, exist_ok=True)
        self.module.write_text(_TOPOLOGY, encoding="utf-8")
        demo = {"paths": list(paths), "files": text.files, "max_batch_bytes": size}
        temporary = self.path / "demo.json.tmp"
        temporary.write_text(json.dumps(demo, indent=1), encoding="utf-8")
        temporary.replace(
            self.path / "demo.json"
        )  # atomic: a run that is killed here leaves the old file or the new one
        return size

    def log(self) -> LogState | None:
        """Return what the log says, None before the first run."""
        return LogReader(self.log_dir).refresh() if exists(self.log_dir) else None

    def command(self, *words: str) -> list[str]:
        """Return the words of a command that reads this demo: `trident get …`, callable as it stands."""
        return [_program(), "get", self.target, "count", *words, "--log-dir", _near(self.log_dir)]

    def _known(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.path / "demo.json").read_bytes())
            return found
        except FileNotFoundError:
            return {}

    def _check_ours(self) -> None:
        if self.path.is_dir() and not (self.path / "demo.json").exists() and any(self.path.iterdir()):
            raise StateError(
                f"{_near(self.path)} is not the folder of a demo; nothing was changed. Name another with --state-dir"
            )
        if self.path.exists() and not self.path.is_dir():
            raise StateError(f"{_near(self.path)} is not a folder. Name another one with --state-dir")


def _program() -> str:
    """Return how to call this program: by its name, or by its path if it is not on the PATH."""
    called = Path(sys.argv[0])
    return _near(called) if called.name == "trident" and shutil.which("trident") is None else "trident"


def _near(path: Path) -> str:
    """Return a path relative to the working directory, if it is within."""
    absolute = path.absolute()
    return os.path.relpath(absolute) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def _names(paths: Sequence[str]) -> str:
    return ", ".join(paths) or "the standard library"
