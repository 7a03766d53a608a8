"""Sources in this process, for the suite of `trident.testing`: rows, feeds, rates, examples of docs/writing-a-spout.md."""

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from spouts import DataFrameSpout, FeederBatchSpout, FixedBatchSpout, RateSpout
from spouts.spark.chunks import ChunkLimits, new_rows_folder, write_manifest
from tests.spout.folder_source import spout_of, write
from tests.spouts.file_sources import Folder, Lines
from tests.spouts.spark.written_rows import FIELDS, batch_of, chunks_of
from trident import Fields
from trident.spout import SpoutType
from trident.testing import SpoutSource

__all__ = [
    "CsvExample",
    "FedRows",
    "FixedRows",
    "NumberedRows",
    "OpaquePartitions",
    "Partitions",
    "QueuedWords",
    "WrittenBatches",
    "WrittenRows",
    "example",
]

LIMIT = 6
ROOT = Path(__file__).parents[2]


class FixedRows(SpoutSource):
    limit, grows = LIMIT, False

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def spout(self) -> FixedBatchSpout:
        return FixedBatchSpout("n: bigint, name: string", LIMIT, *self.rows)

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        added = [(number, f"row {number}") for number in numbers]
        self.rows += added
        return added


class FedRows(SpoutSource):
    durable, patience_s = False, 0.5

    def __init__(self) -> None:
        self.feeder = FeederBatchSpout("n: bigint, name: string")

    def spout(self) -> FeederBatchSpout:
        return self.feeder

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        added = [(number, f"row {number}") for number in numbers]
        self.feeder.feed_nowait(added)
        return added


class Readings:
    """The `IBatchSpout` of docs/writing-a-spout.md, over batches that are written down elsewhere."""

    spout_type = SpoutType.TRANSACTIONAL

    def __init__(self, batches: dict[int, list[tuple[Any, ...]]]) -> None:
        self.batches = batches

    def open(self, conf: Any) -> None: ...

    def emit_batch(self, batch_id: int, collector: Any) -> bool:
        for row in self.batches.get(batch_id, []):
            collector.emit(row)
        return batch_id < max(self.batches, default=0)

    def ack(self, batch_id: int) -> None: ...

    def close(self) -> None: ...

    def get_output_fields(self) -> Fields:
        return Fields("n: bigint")


class WrittenBatches(SpoutSource):
    limit = LIMIT

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[Any, ...]]] = {}

    def spout(self) -> Readings:
        return Readings(self.batches)

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        for start in range(0, len(numbers), LIMIT):
            self.batches[len(self.batches) + 1] = [(number,) for number in numbers[start : start + LIMIT]]
        return [(number,) for number in numbers]


class NumberedRows(SpoutSource):
    """A rate without a clock: so many rows, which are there from the beginning."""

    limit, grows = LIMIT, False

    def __init__(self) -> None:
        self.rows = 0

    def spout(self) -> RateSpout:
        return RateSpout(rows_per_batch=LIMIT, rows=self.rows)

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        added = [(self.rows + at,) for at in range(len(numbers))]
        self.rows += len(numbers)
        return added

    def row_of(self, emitted: tuple[Any, ...]) -> tuple[Any, ...]:
        assert abs((datetime.now(UTC) - emitted[1]).total_seconds()) < 3600
        return emitted[:1]


class Partitions(SpoutSource):
    """Three files as partitions, which other processes read too; a file can be taken away."""

    limit, partitions, adds_partitions = 9, 3, True
    spout_type: ClassVar[SpoutType] = SpoutType.TRANSACTIONAL

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="trident-partitions-"))

    def spout(self) -> Any:
        return spout_of(self.spout_type, self.folder, 3)

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        write(self.folder, str(partition), list(numbers))
        return [(f"part-{partition}", number) for number in numbers]

    @contextmanager
    def lost(self, partition: int) -> Iterator[None]:
        there, away = self.folder / f"part-{partition}", self.folder / f"away-{partition}"
        there.rename(away)
        yield
        away.rename(there)

    def change(self) -> None:
        for path in self.folder.glob("part-*"):
            path.write_bytes(path.read_bytes().translate(bytes.maketrans(b"0123456789", b"1234567890")))

    def close(self) -> None:
        shutil.rmtree(self.folder)


class OpaquePartitions(Partitions):
    spout_type = SpoutType.OPAQUE


class QueuedWords(SpoutSource):
    """The `IRichSpout` of docs/writing-a-spout.md."""

    durable, at_least_once = False, True
    crashes = False  # its rows would be gone

    def __init__(self) -> None:
        self.queue, self.words = example("Queue")(), 0

    def spout(self) -> Any:
        return self.queue

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        words = [f"word {number}" for number in numbers]
        self.queue.waiting.extend(enumerate(words, self.words))
        self.words += len(words)
        return [(word,) for word in words]


class CsvExample(Lines):
    """The spout of docs/writing-a-spout.md that reads a folder of CSV files."""

    limit, durable = 2 * LIMIT, True

    def spout(self) -> Any:
        return example("CsvFolder")(self.folder, "n: bigint, name: string", LIMIT * 10)

    def name(self, partition: int) -> str:
        return f"{partition}.csv"

    def header(self) -> str:
        return "n,name\n"

    def lines(self, numbers: Sequence[int]) -> list[str]:
        return [f"{number:07},x" for number in numbers]

    @contextmanager
    def lost(self, partition: int) -> Iterator[None]:
        path = self.folder / self.name(partition)
        path.rename(self.home / path.name)
        yield
        (self.home / path.name).rename(path)


class WrittenRows(Folder):
    """The rows of a DataFrame as the tasks of Spark write them; they are there before the first batch."""

    limit, grows, durable = LIMIT, False, True

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.written = 0, False

    def spout(self) -> Any:
        if self.rows and not self.written:
            id_, folder = new_rows_folder(str(self.folder))
            chunks = chunks_of(Path(folder), [batch_of(0, self.rows)], ChunkLimits(1, 1 << 30))
            write_manifest(str(self.folder), id_, FIELDS, chunks)
            self.written = True
        return DataFrameSpout(never, self.folder, fields=FIELDS, max_batch_rows=LIMIT)

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        begin, self.rows = self.rows, self.rows + len(numbers)
        return [(number, "x") for number in range(begin, self.rows)]

    def change(self) -> None:
        for path in self.folder.rglob("*"):
            if path.is_file():
                path.write_bytes(bytes(reversed(path.read_bytes())))


def never(spark: Any) -> Any:
    raise AssertionError("the rows are written already")


def example(name: str) -> Any:
    """Return a class of docs/writing-a-spout.md."""
    page = (ROOT / "docs" / "writing-a-spout.md").read_text(encoding="utf-8")
    (program,) = (
        code for code in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if f"\nclass {name}" in code
    )
    begin, end = program.index(f"class {name}"), program.index("\n\n\n", program.index(f"class {name}"))
    imports = [line for line in program[:begin].splitlines() if line.startswith(("import ", "from "))]
    names: dict[str, Any] = {"__name__": name}
    exec("\n".join([*imports, "", program[begin:end]]), names)
    return names[name]
