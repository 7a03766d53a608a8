"""Where the logs of the contract tests are: in a folder, or on a server. All are asked in the same way."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import obstore
import psycopg
from obstore.store import from_url

from tests.log.log_samples import TOPOLOGY, frames_of
from trident.log import lock, stored_log
from trident.log.file_log import FileLog
from trident.log.log_address import store_at
from trident.log.log_interface import TransactionLog
from trident.log.log_reader import LogReader
from trident.log.log_state import LogState
from trident.log.record_store import Head, segment_of
from trident.log.stored_log import StoredReader
from trident.servers.log_addresses import PostgresAddress, is_postgres

__all__ = ["FileHome", "Home", "ObjectHome", "PostgresHome", "StoredHome", "ZooKeeperHome", "reopened"]


class FileHome:
    """A log in a folder.

    Attributes
    ----------
    claim
        The module and the name of the function that look for the claims there are, when a claim is taken.
    keeps_undurable
        Whether a record that is not durable can be read before one that is.
    """

    claim = (lock, "list_log")
    claim_type = lock.Claim
    keeps_undurable = True

    def __init__(self, path: Path) -> None:
        self.path, self.address = path, str(path)

    def open(self, topology: str = TOPOLOGY, **options: Any) -> FileLog:
        return FileLog.open(self.path, topology, **options)

    def reader(self) -> LogReader:
        return LogReader(self.path)

    def contents(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self.path.iterdir()}

    def spoil_claim(self) -> None:
        (claim,) = self.path.glob("epoch-*")
        claim.write_bytes(b"\xff")

    def remove(self) -> None:
        shutil.rmtree(self.path)

    def segments(self) -> list[lock.SegmentName]:
        return lock.list_log(self.path).segments

    def lose(self, segment: lock.SegmentName) -> None:
        (self.path / segment.file).unlink()

    def damage(self, segment: lock.SegmentName) -> str:
        """Damage a record of a segment; return how messages name the place."""
        file = self.path / segment.file
        data, second = bytearray(file.read_bytes()), frames_of(file)[1]
        data[second.end - 1] ^= 1
        file.write_bytes(data)
        return f"{file}, byte {second.offset}"

    def remove_half(self, segment: lock.SegmentName) -> None:
        """Leave what a crash leaves that happens while a segment is removed."""


class StoredHome:
    """A log that a `RecordStore` keeps: a head and chunks."""

    claim = (stored_log, "holder_facts")
    claim_type = stored_log.StoredClaim
    keeps_undurable = False

    def __init__(self, address: str) -> None:
        self.address = address

    def open(self, topology: str = TOPOLOGY, **options: Any) -> stored_log.StoredLog:
        return stored_log.StoredLog.open(store_at(self.address), topology, **options)

    def reader(self) -> StoredReader:
        return StoredReader(store_at(self.address))

    def put(self, name: str, data: bytes) -> None:
        raise NotImplementedError

    def delete(self, names: Iterable[str]) -> None:
        raise NotImplementedError

    def contents(self) -> dict[str, bytes]:
        raise NotImplementedError

    def restore(self, saved: dict[str, bytes]) -> None:
        raise NotImplementedError

    def save(self) -> Any:
        """Return what `restore` sets the log back to."""
        return self.contents()

    def spoil_claim(self) -> None:
        self.put("head", replace(Head.of(self.contents()["head"], "head"), about="?").data)

    def remove(self) -> None:
        self.delete(self.contents())

    def segments(self) -> list[lock.SegmentName]:
        return sorted({segment for name in self.contents() if (segment := segment_of(name)) is not None})

    def lose(self, segment: lock.SegmentName) -> None:
        self.delete([name for name in self.contents() if segment_of(name) == segment])

    def damage(self, segment: lock.SegmentName) -> str:
        name = self._last_head(segment)
        self.put(name, self.contents()[name][:-1] + b"?")
        return name

    def remove_half(self, segment: lock.SegmentName) -> None:
        self.delete([self._last_head(segment)])

    def _last_head(self, segment: lock.SegmentName) -> str:
        (name,) = (each for each in self.contents() if segment_of(each) == segment and each.endswith("-0"))
        return name


class PostgresHome(StoredHome):
    """A log in a PostgreSQL."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._url, self._topology = PostgresAddress.of(address).url, PostgresAddress.of(address).name

    def contents(self) -> dict[str, bytes]:
        heads = self.ask("SELECT 'head', head FROM trident_log_heads WHERE topology = %s")
        return dict([*heads, *self.ask("SELECT name, data FROM trident_log_chunks WHERE topology = %s")])

    def put(self, name: str, data: bytes) -> None:
        if name == "head":
            self.ask("UPDATE trident_log_heads SET head = %s WHERE topology = %s", data, self._topology)
        else:
            self.delete([name])
            self.ask("INSERT INTO trident_log_chunks VALUES (%s, %s, %s)", self._topology, name, data)

    def delete(self, names: Iterable[str]) -> None:
        if "head" in (names := list(names)):
            self.ask("DELETE FROM trident_log_heads WHERE topology = %s")
        self.ask("DELETE FROM trident_log_chunks WHERE topology = %s AND name = ANY(%s)", self._topology, names)

    def save(self) -> Any:
        tables = ("trident_log_heads", "trident_log_chunks")
        return {table: self.ask(f"SELECT * FROM {table} WHERE topology = %s") for table in tables}

    def restore(self, saved: Any) -> None:
        self.remove()
        for table, rows in saved.items():
            for row in rows:
                self.ask(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", *row)

    def ask(self, query: Any, *given: Any) -> list[Any]:
        """Return what the database answers; a placeholder is the topology if nothing is given."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            found = connection.execute(query, given or ([self._topology] if "%s" in query else None))
            return found.fetchall() if found.description else []


class ObjectHome(StoredHome):
    """A log in an object store.

    Parameters
    ----------
    endpoint
        Where the store answers for this home; None: as the environment says.
    """

    def __init__(self, address: str, endpoint: str | None = None) -> None:
        super().__init__(address)
        self._endpoint = endpoint

    def open(self, topology: str = TOPOLOGY, **options: Any) -> stored_log.StoredLog:
        with mock.patch.dict(os.environ, {} if self._endpoint is None else {"AWS_ENDPOINT_URL": self._endpoint}):
            return super().open(topology, **options)

    def contents(self) -> dict[str, bytes]:
        names = [each["path"] for batch in obstore.list(self.objects) for each in batch]
        return {name: bytes(obstore.get(self.objects, name).bytes()) for name in names}

    def put(self, name: str, data: bytes) -> None:
        obstore.put(self.objects, name, data)

    def delete(self, names: Iterable[str]) -> None:
        obstore.delete(self.objects, list(names))

    def restore(self, saved: dict[str, bytes]) -> None:
        self.remove()
        for name, data in saved.items():
            self.put(name, data)

    @property
    def objects(self) -> Any:
        return from_url(self.address, client_options={"allow_http": True})


class ZooKeeperHome(StoredHome):
    """A log in a ZooKeeper."""

    def __init__(self, hosts: str, path: str, client: Any) -> None:
        super().__init__(f"zookeeper://{hosts}{path}")
        self.path, self.client = path, client

    def behind(self, port: int) -> ZooKeeperHome:
        """Return the same log, by way of a proxy."""
        return ZooKeeperHome(f"127.0.0.1:{port}", self.path, self.client)

    def contents(self) -> dict[str, bytes]:
        """Return the data of all nodes of the log, but those that hold other nodes."""
        return self._below("")

    def put(self, name: str, data: bytes) -> None:
        if self.client.exists(f"{self.path}/{name}"):
            self.client.set(f"{self.path}/{name}", data)
        else:
            self.client.create(f"{self.path}/{name}", data)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.client.delete(f"{self.path}/{name}")

    def remove(self) -> None:
        self.client.delete(self.path, recursive=True)

    def restore(self, saved: dict[str, bytes]) -> None:
        """Set the log back, as a server does that is: what was changed since is there no more, or as it was."""
        self.delete(self.contents().keys() - saved.keys())
        for name, data in saved.items():
            if self.contents().get(name) != data:
                self.put(name, data)

    def _below(self, name: str) -> dict[str, bytes]:
        names = [f"{name}/{child}".strip("/") for child in self.client.get_children(f"{self.path}/{name}".rstrip("/"))]
        if not names:
            return {name: self.client.get(f"{self.path}/{name}")[0]} if "/" in name or name == "head" else {}
        return {key: data for each in names for key, data in self._below(each).items()}


def stored_home(address: str) -> StoredHome:
    return PostgresHome(address) if is_postgres(address) else ObjectHome(address)


Home = FileHome | StoredHome


def reopened(home: Home, **options: Any) -> LogState:
    """Open the log and close it; return what it says."""
    log: TransactionLog = home.open(**options)
    log.close()
    return log.state


def read(home: Home) -> LogState:
    with closing(home.reader()) as reader:
        return reader.refresh()
