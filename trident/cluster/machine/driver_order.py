"""The order that a driver process gets when it starts: a file that also lets a later supervisor adopt it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class DriverOrder:
    """The order to run a topology in a slot.

    `cluster`: the address of the cluster's state.
    `node`, `port`, `host`: the slot, and the host of its supervisor.
    `start_time_secs`, `generation`, `code_hash`: of the assignment.
    `code_dir`: the folder of the topology's code, unpacked.
    `log_file`, `end_file`: where the driver logs, and where it says why it ended.
    `run`: a name of this process, in the environment of all processes that it starts.
    `pid`, `created_secs`: the process, once it is started.
    """

    cluster: str
    storm_id: str
    node: str
    port: int
    host: str
    start_time_secs: float
    generation: int
    code_hash: str
    code_dir: str
    log_file: str
    end_file: str
    run: str
    pid: int = 0
    created_secs: float = 0.0

    def of_process(self, pid: int, created_secs: float) -> Self:
        """Return the order with the process that carries it out."""
        return replace(self, pid=pid, created_secs=created_secs)

    def write(self, path: Path) -> None:
        """Write the file; it is whole, or the one before."""
        write_whole(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class DriverEnd:
    """Why a driver ended.

    `told`: whether it was ordered to end.
    `fatal`: whether it would end in the same way on any machine.
    `ran_secs`: how long its topology had run.
    """

    told: bool
    fatal: bool
    ran_secs: float
    reason: str

    def write(self, path: Path) -> None:
        """Write the file."""
        write_whole(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read the file, None if the driver could not write it."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file so that it is never seen in part; what it held before is replaced."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
