"""Partitioned spouts over files that several processes read keep the contract of spouts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from tests.spout.folder_source import spout_of, write
from trident.spout import SpoutType
from trident.testing import SpoutContract, SpoutSource

LIMIT = 4


class Folder(SpoutSource):
    """Three files; a file can be taken away."""

    kind: ClassVar[SpoutType]
    limit = 3 * LIMIT
    partitions = 3
    adds_partitions = True

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())

    def spout(self) -> Any:
        return spout_of(self.kind, self.folder, LIMIT)

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        write(self.folder, str(partition), list(numbers))
        return [(f"part-{partition}", number) for number in numbers]

    @contextmanager
    def lost(self, partition: int) -> Iterator[None]:
        there, away = self.folder / f"part-{partition}", self.folder / f"away-{partition}"
        there.rename(away)
        yield
        away.rename(there)

    def close(self) -> None:
        shutil.rmtree(self.folder)


class TransactionalFiles(Folder):
    kind = SpoutType.TRANSACTIONAL

    def change(self) -> None:
        for path in self.folder.glob("part-*"):
            path.write_bytes(path.read_bytes().translate(bytes.maketrans(b"0123456789", b"1234567890")))


class OpaqueFiles(Folder):
    kind = SpoutType.OPAQUE


class TestTransactionalFiles(SpoutContract):
    source = TransactionalFiles


class TestOpaqueFiles(SpoutContract):
    source = OpaqueFiles
