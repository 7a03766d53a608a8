"""The folder of a supervisor: its id, its slots, the code it has fetched, the logs of its drivers; their orders."""

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from trident.errors import ClusterError
from trident.servers.local_processes import write_whole
from trident.web.cluster_pages import Page
from trident.web.log_pages import decoded_page

_LOG_TAIL = 1 << 16
_OLD_LOG_S = 7 * 86400.0


class MachineFolder:
    """A supervisor's folder. `ClusterError`: another supervisor has it, or it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            for name in ("slots", "code", "logs"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
                raise ClusterError(
                    f"another supervisor runs in {self.path}. Give each one a folder of its own (--folder), or stop that one"
                ) from None
            file = self.path / "supervisor-id"
            if not file.exists():
                # Not the name of the host alone: several supervisors may run on one, and names come back with new machines.
                host = "".join(each if each.isalnum() else "-" for each in socket.gethostname())
                write_whole(file, f"{host}-{secrets.token_hex(4)}\n", 0o644)
            self.id = file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ClusterError(f"a supervisor cannot use the folder {self.path}: {error.strerror or error}") from error

    def order_file(self, port: int) -> Path:
        return self.path / "slots" / f"{port}.json"

    def end_file(self, port: int) -> Path:
        return self.path / "slots" / f"{port}.end.json"

    def log_file(self, storm_id: str) -> Path:
        return self.path / "logs" / f"{storm_id}.log"

    def output_file(self, storm_id: str) -> Path:
        return self.path / "logs" / f"{storm_id}.out"

    def remove_old_logs(self, known: Collection[str]) -> None:
        """Remove the logs of topologies that are not in the cluster any more, a week after their last line."""
        for each in (self.path / "logs").iterdir():
            # `words-1-5.log`, and `words-1-5.log.1` and so on, of which the driver keeps some.
            is_known = any(each.name.startswith(f"{name}.") for name in known)
            if not is_known and time.time() - each.stat().st_mtime > _OLD_LOG_S:
                each.unlink(missing_ok=True)

    def close(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def read_log(file: Path, offset: int | None, limit: int = _LOG_TAIL) -> Page:
    """Return `{"text", "offset", "next", "lineEnd"}`, in bytes: a log from `offset` on, or its end."""
    # A log that was begun again since is read from its begin.
    try:
        size = file.stat().st_size
        begin = max(0, size - limit) if offset is None else offset if offset <= size else 0
        with file.open("rb") as opened:
            opened.seek(begin)
            data = opened.read(limit)
    except FileNotFoundError:
        return decoded_page(b"", 0)
    if offset is None and begin and (cut := data.find(b"\n")) >= 0:  # a tail begins with a whole line
        begin, data = begin + cut + 1, data[cut + 1 :]
    return decoded_page(data, begin)


@dataclass(frozen=True)
class _Note:
    """What a supervisor and the process of a driver tell each other, in a file."""

    def write(self, path: Path) -> None:
        write_whole(path, json.dumps(asdict(self)), 0o644)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None


@dataclass(frozen=True)
class DriverOrder(_Note):
    """The order to run a topology in a slot; it also lets a later supervisor adopt the driver.

    `node`, `port`, `host`: the slot, and the host of its supervisor.
    `start_time_secs`, `generation`, `code_hash`: of the assignment.
    `log_file`, `end_file`: where the driver logs, and where it says why it ended.
    """

    cluster: str  # the address of the cluster's state
    storm_id: str
    node: str
    port: int
    host: str
    start_time_secs: float
    generation: int
    code_hash: str
    code_dir: str  # the folder of the topology's code, unpacked
    log_file: str
    end_file: str
    run: str  # the name of its process, in the environment of that and of all that it starts


@dataclass(frozen=True)
class DriverEnd(_Note):
    """Why a driver ended."""

    told: bool  # whether it was ordered to end
    fatal: bool  # whether it would end in the same way on any machine
    ran_secs: float  # how long its topology had run
    reason: str
