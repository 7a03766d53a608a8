"""A correct spout over a folder of files of lines, each a partition; `test_wrong_spouts.py` has those that are wrong.

It is written as a spout over a real source would be: definitions are ranges of lines, limits are kept over all partitions,
and a checksum finds what was changed.
"""

import json
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from trident import Fields
from trident.errors import ReplayMismatchError, SpoutError
from trident.spout import BatchCoordinator, Definition, Lag, SpoutType, TransactionAttempt
from trident.testing import SpoutSource

LIMIT = 6
FIELDS = Fields("n: bigint, name: string")


class LineCoordinator(BatchCoordinator):
    """Definitions are `{"ranges": [[file, start, end, checksum of the last line]], "at": {file: end}, "bytes": …}`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.share, self.known = folder, 1.0, dict[str, list[str]]()
        self.kept: dict[Any, Any] = {}  # what a wrong one remembers

    def lines(self) -> dict[str, list[str]]:
        """Read the source."""
        if not self.folder.is_dir():
            raise SpoutError(f"list {self.folder}: there is no such folder; is it mounted?")
        self.known = {path.name: path.read_text().splitlines() for path in sorted(self.folder.iterdir())}
        return self.known

    def limit(self) -> int:
        return max(1, int(LIMIT * self.share))

    def start(self, txid: int, previous: Definition | None) -> dict[str, int]:
        """Return how far each file is read."""
        return dict(previous["at"]) if previous else {}

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        at, ranges, left, size = self.start(txid, previous), list[list[Any]](), self.limit(), 0
        for name, lines in self.lines().items():
            begin = at.get(name, 0)
            end = min(len(lines), begin + left)
            if end > begin:
                ranges.append([name, begin, end, zlib.crc32(lines[end - 1].encode())])
                at[name], left = end, left - (end - begin)
                size += sum(map(len, lines[begin:end]))
        return {"ranges": ranges, "at": at, "bytes": size} if ranges else None

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        rows = sum(end - start for _, start, end, _ in definition["ranges"])
        step = max(1, -(-rows // parallelism))
        return [
            (self.folder, name, at, min(at + step, end), end, crc)
            for name, start, end, crc in definition["ranges"]
            for at in range(start, end, step)
        ]

    def size(self, definition: Definition) -> int | None:
        size: int = definition["bytes"]
        return size

    def lag(self, definition: Definition) -> Lag | None:
        return Lag(sum(len(lines) - definition["at"].get(name, 0) for name, lines in self.known.items()), "lines")

    def throttle(self, share: float) -> None:
        self.share = share

    def success(self, txid: int, definition: Definition) -> None: ...

    def close(self) -> None: ...


class LineEmitter:
    """Reads ranges of lines."""

    is_quick = True

    def emit(self, part: Any) -> Iterator[pa.Table]:
        folder, name, start, end, last, crc = part
        lines = self.lines(folder / name)
        self.check(folder / name, lines, last, crc)
        for at in range(start, end, 3):
            yield self.table([json.loads(line) for line in lines[at : min(end, at + 3)]])

    def lines(self, path: Path) -> list[str]:
        try:
            return path.read_text().splitlines()
        except FileNotFoundError as error:
            raise SpoutError(f"read {path}: there is no such file; bring it back") from error

    def check(self, path: Path, lines: list[str], last: int, crc: int) -> None:
        if len(lines) < last or zlib.crc32(lines[last - 1].encode()) != crc:
            raise ReplayMismatchError(f"read {path}: line {last} is not what it was when the batch was defined")

    def table(self, rows: list[list[Any]]) -> pa.Table:
        numbers, names = [row[0] for row in rows], [row[1] for row in rows]
        return pa.table({"n": pa.array(numbers, pa.int64()), "name": pa.array(names, pa.string())})


class LineSpout:
    """The description."""

    coordinator: ClassVar[type[LineCoordinator]] = LineCoordinator
    emitter: ClassVar[type[LineEmitter]] = LineEmitter

    def __init__(self, folder: Path, spout_type: SpoutType) -> None:
        self.folder, self.spout_type = folder, spout_type

    def get_output_fields(self) -> Fields:
        return FIELDS

    def get_coordinator(self, conf: Mapping[str, Any]) -> LineCoordinator:
        return self.coordinator(self.folder)

    def get_emitter(self, conf: Mapping[str, Any]) -> LineEmitter:
        return self.emitter()


class LineSource(SpoutSource):
    """The folder, and what can be done to it."""

    limit = LIMIT
    partitions = 2
    adds_partitions = True
    durable = False  # where another process is not the point, none is started
    patience_s = 0.02
    idle_s = 0.03
    made: ClassVar[type[LineSpout]] = LineSpout
    spout_type: ClassVar[SpoutType] = SpoutType.TRANSACTIONAL

    def __init__(self) -> None:
        memory = Path("/dev/shm")
        self.home = Path(tempfile.mkdtemp(prefix="trident-lines-", dir=memory if memory.is_dir() else None))
        self.folder, self.away = self.home / "lines", self.home / "away"
        self.folder.mkdir()
        self.away.mkdir()

    def spout(self) -> Any:
        return self.made(self.folder, self.spout_type)

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        rows = [(number, f"Row {number}") for number in numbers]
        with (self.folder / str(partition)).open("a") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
        return rows

    @contextmanager
    def lost(self, partition: int) -> Iterator[None]:
        (self.folder / str(partition)).rename(self.away / str(partition))
        yield
        (self.away / str(partition)).rename(self.folder / str(partition))

    @contextmanager
    def outage(self) -> Iterator[None]:
        self.folder.rename(self.home / "gone")
        yield
        (self.home / "gone").rename(self.folder)

    def change(self) -> None:
        for path in self.folder.iterdir():
            path.write_text(path.read_text().replace("Row", "Now"))

    def close(self) -> None:
        shutil.rmtree(self.home)
