"""The servers of a row, each started when it is asked for first; all end with the row."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from tests.harness.kafka_servers import start_kafka
from tests.harness.servers import Server, start_postgres, start_redis, start_s3
from tests.harness.zookeeper_servers import start_zookeeper


def _redis_that_keeps(work: Path) -> Server:
    return start_redis(work, "--appendonly", "yes", "--appendfsync", "always", "--save", "")


class RowServers(ExitStack):
    """Starts servers by their names, and closes whatever else is pushed."""

    _starts: ClassVar[dict[str, Callable[[Path], Any]]] = {
        "redis": start_redis,
        "redis that keeps": _redis_that_keeps,
        "postgres": start_postgres,
        "s3": start_s3,
        "zookeeper": start_zookeeper,
        "ensemble": lambda work: start_zookeeper(work, members=3),
        "kafka": start_kafka,
        "two brokers": lambda work: start_kafka(work, 2),
    }

    def __init__(self, work: Path) -> None:
        super().__init__()
        self._work, self._running = work, dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        """Return a server that runs."""
        if name not in self._running:
            folder = self._work / "servers" / name.replace(" ", "-")
            folder.mkdir(parents=True)
            server = self._running[name] = self._starts[name](folder)
            self.callback(server.stop)
            if name == "s3":
                keys = {"REGION": "us-east-1", "ACCESS_KEY_ID": "user", "SECRET_ACCESS_KEY": "secret"}
                address = {"AWS_ENDPOINT_URL": f"http://{server.address}"}
                self.enter_context(mock.patch.dict(os.environ, address | {f"AWS_{key}": keys[key] for key in keys}))
        return self._running[name]

    @property
    def redis_url(self) -> str:
        """The address of a Redis."""
        return f"redis://{self['redis'].address}/0"

    def log_at(self, home: str) -> str:
        """Return how the address of a log begins that is kept there; empty: in files."""
        if home == "files":
            return ""
        server = self[home]
        if home == "postgres":
            return f"postgresql://trident@{server.address}/postgres?topology="
        return "s3://logs/proof" if home == "s3" else f"zookeeper://{server.hosts}/proof"
