"""What the tests of Redis Streams share: a client, filled streams, and batches as a driver would run them."""

import pickle
from collections.abc import Iterable
from typing import Any

import redis

from tests.harness.servers import Server
from tests.spouts.driving import OPENED
from tests.spouts.reading import rows_of
from trident.spout import Definition

FIELDS = "word: string, n: bigint"


def url_of(server: Any) -> str:
    """Return the address of a server, of that behind a client, or of a port."""
    port = (
        getattr(server, "port", server)
        if not isinstance(server, redis.Redis)
        else server.get_connection_kwargs()["port"]
    )
    return f"redis://127.0.0.1:{port}/0"


def client_of(server: Server) -> Any:
    return redis.Redis(port=server.port, protocol=2)


def fill(client: Any, numbers: Iterable[int], stream: str = "s") -> None:
    """Add entries whose ids, words and numbers say which they are."""
    for number in numbers:
        client.xadd(stream, {"word": f"w{number}", "n": number}, id=f"{number}-0")


def numbers(batches: list[list[Any]]) -> list[list[int]]:
    return [[row[1] for row in batch] for batch in batches]


class Batches:
    """Runs the batches of a spout as a driver does, one after the other; a new one on the last definition is a restart."""

    def __init__(self, spout: Any, previous: Definition | None = None, txid: int = 0) -> None:
        self.spout, self.previous, self.txid = spout, previous, txid
        self.coordinator = spout.get_coordinator({})
        OPENED.append(self)

    def define(self) -> Definition | None:
        """Define the next batch, from a copy of the definition before, as a log would give it back."""
        return self.coordinator.initialize_transaction(self.txid + 1, pickle.loads(pickle.dumps(self.previous)))

    def rows(self, definition: Definition, parallelism: int = 1) -> list[Any]:
        return rows_of(self.spout, self.coordinator, definition, parallelism, self.txid + 1)

    def run(self) -> list[list[Any]]:
        """Run batches until there is nothing more; the rows of each."""
        found = []
        while (definition := self.define()) is not None:
            found.append(self.rows(definition))
            self.commit(definition)
        return found

    def commit(self, definition: Definition) -> None:
        self.txid, self.previous = self.txid + 1, definition
        self.coordinator.success(self.txid, definition)

    def close(self) -> None:
        OPENED.remove(self)
        self.coordinator.close()
