"""A folder as a partitioned source: each file a partition, each line a number. Other processes may read and extend it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trident import Fields
from trident.spout import IOpaquePartitionedTridentSpout, IPartitionedTridentSpout, SpoutType, TransactionAttempt

FIELDS = Fields("partition: string", "n: bigint")
_LIMIT = 4


class FolderCoordinator:
    """Names the files; notes in `asked` how often it was asked."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def get_partitions_for_batch(self) -> list[str]:
        note(self.folder, "asked")
        return sorted(path.name for path in Path(self.folder).glob("part-*"))


class FolderEmitter:
    """Reads `limit` lines. `before` is called with the file before they are emitted, and may end the process."""

    def __init__(self, folder: str, limit: int, before: Any) -> None:
        self.folder, self.limit, self.before = folder, limit, before

    def emit_partition_batch_new(
        self, attempt: TransactionAttempt, collector: Any, partition: str, last_metadata: Any
    ) -> Any:
        start = last_metadata["end"] if last_metadata else 0
        with Path(self.folder, partition).open("rb") as file:
            file.seek(start)
            lines = file.readlines()[: max(1, int(self.limit * collector.share))]
        if not lines:
            return last_metadata
        note(self.folder, f"new-{attempt.txid}-by-{os.getpid()}")
        self.before(partition, attempt)
        for line in lines:
            collector.emit([partition, int(line)])
        return {"start": start, "end": start + sum(map(len, lines))}

    def emit_partition_batch(self, attempt: TransactionAttempt, collector: Any, partition: str, metadata: Any) -> None:
        note(self.folder, f"again-{attempt.txid}-{partition}")
        with Path(self.folder, partition).open("rb") as file:
            file.seek(metadata["start"])
            for line in file.read(metadata["end"] - metadata["start"]).splitlines():
                collector.emit([partition, int(line)])


def no_crash(partition: str, attempt: TransactionAttempt) -> None:
    """Go on."""


class _Folder:
    def __init__(self, folder: Path, limit: int = _LIMIT, before: Any = no_crash) -> None:
        self.folder, self.limit, self.before = str(folder), limit, before

    def get_output_fields(self) -> Fields:
        return FIELDS

    def get_coordinator(self, conf: Mapping[str, Any]) -> FolderCoordinator:
        return FolderCoordinator(self.folder)

    def get_emitter(self, conf: Mapping[str, Any]) -> FolderEmitter:
        return FolderEmitter(self.folder, self.limit, self.before)


class TransactionalFolder(_Folder, IPartitionedTridentSpout):
    """Re-emits what its metadata say."""


class OpaqueFolder(_Folder, IOpaquePartitionedTridentSpout):
    """Emits what is there."""


def spout_of(kind: SpoutType, folder: Path, limit: int = _LIMIT, before: Any = no_crash) -> Any:
    return (TransactionalFolder if kind is SpoutType.TRANSACTIONAL else OpaqueFolder)(folder, limit, before)


def note(folder: str | Path, what: str) -> None:
    """Note that something happened, across processes."""
    with Path(folder, what).open("ab") as file:
        file.write(b"x")


def noted(folder: str | Path, what: str) -> int:
    """Return how often it happened."""
    path = Path(folder, what)
    return path.stat().st_size if path.exists() else 0


def readers(folder: Path, txid: int) -> set[int]:
    """Return the processes that have read something new for a batch."""
    return {int(path.name.rpartition("-")[2]) for path in folder.glob(f"new-{txid}-by-*")}


def write(folder: Path, partition: str, numbers: range | list[int]) -> None:
    with (folder / f"part-{partition}").open("ab") as file:
        file.write(b"".join(b"%d\n" % number for number in numbers))


def numbers_in(folder: Path) -> dict[str, int]:
    return {path.name: sum(map(int, path.read_bytes().split())) for path in sorted(folder.glob("part-*"))}
