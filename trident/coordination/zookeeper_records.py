"""Reads a segment of a log in ZooKeeper as it lies there: the records, and not what they come to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trident.coordination.lock import SegmentName
from trident.coordination.zookeeper_nodes import LogNodes, ZooKeeperConnection, part_of
from trident.errors import CorruptLogError

AT_ONCE = 100


def get_records(connection: ZooKeeperConnection, nodes: LogNodes, segment: SegmentName, numbers: range) -> list[Any]:
    """Return what ZooKeeper answers for each of some records of a segment: data and facts, or an error."""
    from kazoo.exceptions import NoNodeError

    paths = [nodes.record(segment, number) for number in numbers]
    return connection.call_each(lambda client: map(client.get_async, paths), NoNodeError)


def read_payloads(
    connection: ZooKeeperConnection, nodes: LogNodes, segment: SegmentName, header_only: bool
) -> Iterator[bytes]:
    """Yield the records of a segment, or its header only; see `TransactionLogReader.read_segment`."""
    from kazoo.exceptions import NoNodeError

    path, step = nodes.segment(segment), 1 if header_only else AT_ONCE
    (found,) = connection.call_each(lambda client: (client.exists_async(path),), NoNodeError)
    count = 0 if found is None or isinstance(found, Exception) else int(found.numChildren)
    parts: list[bytes] = []
    is_begun = False
    for first in range(0, count, step):
        numbers = range(first, min(count, first + step))
        for number, record in zip(numbers, get_records(connection, nodes, segment, numbers), strict=True):
            where = f"{connection.address}{nodes.record(segment, number).removeprefix(nodes.path)}"
            if isinstance(record, Exception):
                if not is_begun:
                    return  # it was not finished, or is being removed, from its header on
                raise CorruptLogError(where, 0, "the record is missing")
            try:
                part, is_last = part_of(record[0], number)
            except ValueError as error:
                raise CorruptLogError(where, 0, str(error)) from error
            parts.append(part)
            if is_last:
                yield b"".join(parts)
                parts, is_begun = [], True
                if header_only:
                    return
