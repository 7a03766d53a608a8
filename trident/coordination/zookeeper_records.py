"""Reads a segment of a log in ZooKeeper as it lies there: the records, and not what they come to."""

from __future__ import annotations

from typing import Any

from trident.coordination.lock import SegmentName
from trident.coordination.zookeeper_nodes import LogNodes, ZooKeeperConnection, part_of
from trident.errors import CorruptLogError

AT_ONCE = 100


def get_records(
    connection: ZooKeeperConnection, nodes: LogNodes, segment: SegmentName, numbers: range
) -> list[Any]:
    """Return what ZooKeeper answers for each of some records of a segment: data and facts, or an error."""
    from kazoo.exceptions import NoNodeError

    paths = [nodes.record(segment, number) for number in numbers]
    return connection.call_each(lambda client: map(client.get_async, paths), NoNodeError)


def read_payloads(
    connection: ZooKeeperConnection, nodes: LogNodes, segment: SegmentName, header_only: bool
) -> list[bytes] | None:
    """Return the records of a segment, or its header only; None if it was removed."""
    from kazoo.exceptions import NoNodeError

    path = nodes.segment(segment)
    (found,) = connection.call_each(lambda client: (client.exists_async(path),), NoNodeError)
    count = 0 if found is None or isinstance(found, Exception) else int(found.numChildren)
    payloads: list[bytes] = []
    parts: list[bytes] = []
    for first in range(0, count, 1 if header_only else AT_ONCE):
        numbers = range(first, min(count, first + (1 if header_only else AT_ONCE)))
        for number, record in zip(numbers, get_records(connection, nodes, segment, numbers), strict=True):
            if isinstance(record, Exception):
                if not payloads:
                    return None  # it is being removed, from its header on
                raise CorruptLogError(f"{connection.address}{path.removeprefix(nodes.path)}", 0, f"record {number} is missing")
            try:
                part, is_last = part_of(record[0], number)
            except ValueError as error:
                where = f"{connection.address}{nodes.record(segment, number).removeprefix(nodes.path)}"
                raise CorruptLogError(where, 0, str(error)) from error
            parts.append(part)
            if is_last:
                payloads.append(b"".join(parts))
                parts = []
        if header_only and payloads:
            break
    return payloads or None
