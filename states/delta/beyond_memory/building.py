"""Writes a first base from more rows than memory holds, in any order: they are parted by their hashes on the local disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from states.delta.beyond_memory.bucket_files import Bucket, BucketFile
from states.delta.beyond_memory.bucketed_base import BucketedBase
from states.delta.beyond_memory.sorted_rows import hashed, hashes_in, rows_only

__all__ = ["built"]

_MOST_DEPTH = 8  # one open file to each part


def built(
    tables: Iterable[pa.Table],
    empty: BucketedBase,
    rows: int,
    finish: Callable[[pa.Table], pa.Table],
    keys: Sequence[str],
) -> Iterator[BucketFile]:
    """Write all rows, a bucket at a time; no log names the files yet.

    Parameters
    ----------
    tables
        The rows: the key columns, and any others. A key may come more than once.
    empty
        A base without files, which says how it keeps rows.
    rows
        About how many rows there are.
    finish
        Makes rows of the base of all rows of some keys, in the order in which they came; each key once.
    keys
        The key columns of the rows; they may have other names in the base.
    """
    depth = 0
    while rows >> depth > empty.limits.rows and depth < _MOST_DEPTH:
        depth += 1
    parts = [Bucket(depth, prefix) for prefix in range(1 << depth)]
    with TemporaryDirectory(prefix="trident-delta-") as folder:
        names = [Path(folder) / f"{part.prefix}.arrow" for part in parts]
        _part(tables, parts, names, keys)
        for part, name in zip(parts, names, strict=True):
            if name.exists():
                with pa.OSFile(str(name)) as source, pa.ipc.open_stream(source) as reader:
                    together = reader.read_all()
                name.unlink()
                yield from empty.written(hashed(finish(together), empty.keys)[0], part)


def _part(tables: Iterable[pa.Table], parts: list[Bucket], names: list[Path], keys: Sequence[str]) -> None:
    with ExitStack() as stack:
        writers: dict[Path, pa.ipc.RecordBatchStreamWriter] = {}
        for table in tables:
            ordered = hashed(table, keys)[0]
            hashes = hashes_in(ordered)
            for part, name in zip(parts, names, strict=True):
                inside = part.within(hashes)
                if inside.start == inside.stop:
                    continue
                if name not in writers:
                    sink = stack.enter_context(pa.OSFile(str(name), "wb"))
                    writers[name] = stack.enter_context(pa.ipc.new_stream(sink, table.schema))
                writers[name].write_table(rows_only(ordered.slice(inside.start, inside.stop - inside.start)))
