"""Folders of files and a Delta table, filled for the contract of spouts."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from spouts import CsvFileSpout, DeltaSpout, JsonFileSpout, ParquetFileSpout, TextFileSpout
from trident.testing import SpoutSource

_ROW = 10  # bytes of a row of text, so that limits of bytes are limits of rows


class Folder(SpoutSource):
    """Two folders in one, for two partitions."""

    limit = 10
    patience_s = 0.1
    idle_s = 0.1
    durable = False  # where another process is not the point, none is started

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="trident-files-"))
        self.folder = self.home / "files"
        self.folder.mkdir()

    @contextmanager
    def outage(self) -> Iterator[None]:
        self.folder.rename(self.home / "away")
        yield
        (self.home / "away").rename(self.folder)

    def close(self) -> None:
        shutil.rmtree(self.home)


class Lines(Folder):
    """Files that grow, one a partition."""

    partitions = 2
    adds_partitions = True

    def lines(self, numbers: Sequence[int]) -> list[str]:
        raise NotImplementedError

    def header(self) -> str:
        return ""

    def name(self, partition: int) -> str:
        raise NotImplementedError

    def rows(self, numbers: Sequence[int]) -> list[tuple[Any, ...]]:
        return [(number, "x") for number in numbers]

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        path = self.folder / self.name(partition)
        text = "" if path.exists() else self.header()
        with path.open("a") as file:
            file.write(text + "".join(line.ljust(_ROW - 1) + "\n" for line in self.lines(numbers)))
        return self.rows(numbers)

    def change(self) -> None:
        for path in self.folder.iterdir():
            path.write_bytes(path.read_bytes().replace(b"x", b"y").replace(b"0", b"1"))


class TextSource(Lines):
    def spout(self) -> TextFileSpout:
        return TextFileSpout(self.folder, max_batch_bytes=10 * _ROW, allow_empty=True)

    def name(self, partition: int) -> str:
        return f"{partition}.txt"

    def lines(self, numbers: Sequence[int]) -> list[str]:
        return [f"{number:09}" for number in numbers]

    def rows(self, numbers: Sequence[int]) -> list[tuple[Any, ...]]:
        return [(line,) for line in self.lines(numbers)]


class CsvSource(Lines):
    def spout(self) -> CsvFileSpout:
        return CsvFileSpout(self.folder, "n: bigint, name: string", max_batch_bytes=10 * _ROW, allow_empty=True)

    def name(self, partition: int) -> str:
        return f"{partition}.csv"

    def header(self) -> str:
        return "name,n\n"

    def lines(self, numbers: Sequence[int]) -> list[str]:
        return [f"x,{number:07}" for number in numbers]


class JsonSource(Lines):
    limit = 4

    def spout(self) -> JsonFileSpout:
        return JsonFileSpout(self.folder, "n: bigint, name: string", max_batch_bytes=100, allow_empty=True)

    def name(self, partition: int) -> str:
        return f"{partition}.jsonl"

    def lines(self, numbers: Sequence[int]) -> list[str]:
        return [json.dumps({"n": number, "name": "x"}).ljust(24) for number in numbers]


class ParquetSource(Folder):
    """Each filling is a file, each row a row group."""

    def spout(self) -> ParquetFileSpout:
        return ParquetFileSpout(self.folder, "n: bigint, name: string", max_batch_rows=10, allow_empty=True)

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        table = pa.table({"name": [f"Row {number}" for number in numbers], "n": pa.array(numbers, pa.int64())})
        path = self.folder / f"{len(list(self.folder.iterdir())):05}.parquet"
        pq.write_table(table, path.with_suffix(".part"), row_group_size=1)
        path.with_suffix(".part").rename(path)
        return [(number, f"Row {number}") for number in numbers]

    def change(self) -> None:
        for path in self.folder.iterdir():
            table = pq.read_table(path)
            pq.write_table(table.slice(0, table.num_rows - 1), path)


class DeltaSource(Folder):
    """Each row is a version, and each filling ends with one that moves a row to another file."""

    mode: Literal["append", "changes"] = "append"

    def __init__(self) -> None:
        super().__init__()
        table = pa.table({"n": pa.array([], pa.int64()), "name": pa.array([], pa.string())})
        write_deltalake(self.folder, table, configuration={"delta.enableChangeDataFeed": "true"})
        self.version = 0

    def spout(self) -> DeltaSpout:
        return DeltaSpout(
            self.folder, "n: bigint, name: string", mode=self.mode, starting_version=0, max_batch_files=10
        )

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        # By hand, because delta-rs takes ten times as long.
        last: dict[str, Any] = {}
        for number in numbers:
            last = self.added(number)
            self.commit({"add": last | {"dataChange": True}})
        again = self.added(numbers[-1])
        removed = {"path": last["path"], "size": last["size"], "partitionValues": {}, "deletionTimestamp": 1}
        self.commit({"add": again | {"dataChange": False}}, {"remove": removed | {"dataChange": False}})
        return [(number, f"Row {number}") for number in numbers]

    def added(self, number: int) -> dict[str, Any]:
        path = self.folder / f"{self.version}.parquet"
        pq.write_table(pa.table({"n": pa.array([number], pa.int64()), "name": [f"Row {number}"]}), path)
        size = path.stat().st_size
        return {"path": path.name, "size": size, "partitionValues": {}, "modificationTime": 1}

    def commit(self, *actions: dict[str, Any]) -> None:
        self.version += 1
        info = {"commitInfo": {"timestamp": self.version, "operation": "WRITE"}}
        path = self.folder / "_delta_log" / f"{self.version:020}.json"
        path.with_suffix(".part").write_text("\n".join(map(json.dumps, (info, *actions))))
        path.with_suffix(".part").rename(path)

    def change(self) -> None:
        for path in self.folder.glob("*.parquet"):
            path.write_bytes(path.read_bytes()[:-1])


class DeltaChangesSource(DeltaSource):
    mode = "changes"

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        return [(*row, "insert") for row in super().fill(numbers, partition)]

    def row_of(self, emitted: tuple[Any, ...]) -> tuple[Any, ...]:
        return emitted[:3]
