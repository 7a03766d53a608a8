"""A RabbitMQ for tests: a node of its own with its own name, folder, cookie and port mapper, all on 127.0.0.1.

A node needs the port mapper of Erlang (epmd), which one node would start for all others of the machine. Here each node
has one of its own on a free port, which is started before it and stopped after it by process id.
"""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path

import pika

from tests.harness.servers import Server, free_ports, program

__all__ = ["RabbitServer", "start_rabbitmq"]

_DEBIAN = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the program on PATH would switch to a user of its own
_NO_PLUGINS = "[].\n"
logging.getLogger("pika").setLevel(
    logging.CRITICAL
)  # else it logs a stack trace for each question before the server is up


class RabbitServer(Server):
    """One node; takes about 4 seconds to start. A restart keeps durable queues with their persistent messages."""

    _mapper: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where a client finds it."""
        return f"amqp://guest:guest@{self.address}/%2F"

    def start(self) -> None:
        if self._mapper is None:
            self._mapper = _start_mapper(self.work)
        try:
            super().start()
        except BaseException:
            self._stop_mapper()
            raise

    def kill(self) -> None:
        super().kill()
        self._stop_mapper()

    def stop(self) -> None:
        super().stop()
        self._stop_mapper()

    def _stop_mapper(self) -> None:
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait()
            self._mapper = None


def start_rabbitmq(work: Path) -> RabbitServer:
    """Start a RabbitMQ with the user `guest` and the virtual host `/`."""
    port, mapper_port, nodes_port = free_ports(3)
    (work / "mapper").write_text(str(mapper_port), encoding="utf-8")
    (work / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\nlog.file = false\nlog.console = true\nlog.console.level = warning\n"
        "disk_free_limit.absolute = 10MB\nvm_memory_high_watermark.absolute = 1GB\nheartbeat = 10\n",
        encoding="utf-8",
    )
    (work / "plugins").write_text(_NO_PLUGINS, encoding="utf-8")
    folders = {
        "RABBITMQ_BASE": work, "RABBITMQ_MNESIA_BASE": work / "data", "RABBITMQ_LOG_BASE": work / "log",
        "RABBITMQ_QUORUM_DIR": work / "quorum", "RABBITMQ_SCHEMA_DIR": work / "schema",
        "RABBITMQ_GENERATED_CONFIG_DIR": work / "generated", "RABBITMQ_FEATURE_FLAGS_FILE": work / "feature_flags",
        "RABBITMQ_ENABLED_PLUGINS_FILE": work / "plugins", "RABBITMQ_CONFIG_FILE": work / "rabbitmq.conf",
    }  # fmt: skip
    variables = {
        **folders, "HOME": work, "ERL_EPMD_PORT": mapper_port, "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"trident{port}@localhost", "RABBITMQ_NODE_PORT": port, "RABBITMQ_DIST_PORT": nodes_port,
        "RABBITMQ_LOGS": "-", "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        # Has the script become the server, so that its process id is the server's.
        "RABBITMQ_ALLOW_INPUT": 1,
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +A 4",
    }  # fmt: skip
    script = _DEBIAN if _DEBIAN.exists() else program("rabbitmq-server")
    argv = ["env", *(f"{name}={value}" for name, value in variables.items()), script]
    return RabbitServer("rabbitmq-server", argv, port, work, _answers, grace=15.0)


def _start_mapper(work: Path) -> subprocess.Popen[bytes]:
    port = (work / "mapper").read_text(encoding="utf-8")
    with (work / "mapper.log").open("ab") as out:
        return subprocess.Popen(
            [program("epmd"), "-port", port, "-address", "127.0.0.1"],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip


def _answers(port: int) -> bool:
    """Whether a client is let in: the port answers before that."""
    parameters = pika.ConnectionParameters("127.0.0.1", port, connection_attempts=1, socket_timeout=1.0)
    try:
        pika.BlockingConnection(parameters).close()
    except pika.exceptions.AMQPError:
        return False
    return True
