"""A Kafka of one broker or of several for tests: processes that are killed, paused and restarted one by one.

One broker is one process, which is the controller too. Several brokers have a controller of their own, a process that no
test kills: without it a Kafka of two brokers answers nobody after one of them has died.
"""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.harness.servers import CONFIGURATION, JARS, Server, free_ports, program

KAFKA_JARS = JARS / "kafka"
_CONTROLLER = 100  # its node id where it is a process of its own
_MEMORY = ("-Xms32m", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k", "-XX:-UsePerfData")


class KafkaNode(Server):
    """One process of a Kafka; each start of it is ready when its own part of the log says so.

    Its port may answer before the controller lets it serve.
    """

    def __init__(self, node: int, argv: list[object], port: int, work: Path) -> None:
        self.node = node
        self._log, self._logged = work / "server.log", 0
        super().__init__(f"kafka node {node}", argv, port, work, lambda _: self._says_started(), grace=5.0)

    def start(self) -> None:
        self._logged = self._log.stat().st_size if self._log.exists() else 0
        super().start()

    def _says_started(self) -> bool:
        with self._log.open("rb") as log:
            log.seek(self._logged)
            return b"Kafka Server started" in log.read()


class KafkaCluster:
    """All processes of a Kafka.

    Attributes
    ----------
    brokers
        Those that hold data, in the order of their ids 1, 2, …; each can be killed, paused and started again, where
        there are several.
    """

    def __init__(self, brokers: list[KafkaNode], controller: KafkaNode | None) -> None:
        self.brokers, self._controller = brokers, controller

    @property
    def bootstrap(self) -> str:
        """What a client is given as `bootstrap.servers`: every broker."""
        return ",".join(broker.address for broker in self.brokers)

    def leader(self, topic: str, partition: int = 0) -> KafkaNode:
        """Return the broker that leads a partition."""
        found = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(topic, timeout=30)
        return self.brokers[found.topics[topic].partitions[partition].leader - 1]

    def restart(self) -> None:
        """Start every broker again that was killed."""
        for broker in self.brokers:
            if not broker.runs:
                broker.start()

    def stop(self) -> None:
        """End all processes, brokers first."""
        for node in [*self.brokers, *([self._controller] if self._controller else [])]:
            # A broker in order takes seconds to hand over its partitions, which are thrown away.
            node.kill()


def start_kafka(work: Path, brokers: int = 1) -> KafkaCluster:
    """Start a Kafka; one broker takes 2 to 5 seconds.

    Parameters
    ----------
    work
        Its folder.
    brokers
        How many; each holds a copy of every partition, unless a topic is created with fewer copies.
    """
    if not any(KAFKA_JARS.glob("*.jar")):
        raise RuntimeError(f"no jars of Kafka in {KAFKA_JARS}; run: make servers")
    (controller_port,) = free_ports(1)
    cluster, alone = _id(), brokers == 1

    def node(number: int, roles: str, port: int) -> Callable[[], KafkaNode]:
        listeners = {
            "broker": f"PLAINTEXT://127.0.0.1:{port}",
            "controller": f"CONTROLLER://127.0.0.1:{controller_port}",
        }
        values = {
            "ROLES": roles, "ID": number, "LISTENERS": ",".join(listeners[role] for role in roles.split(",")),
            "CONTROLLER": f"{1 if alone else _CONTROLLER}@127.0.0.1:{controller_port}", "COPIES": brokers,
        }  # fmt: skip
        return lambda: _start_node(work / f"node{number}", number, port, cluster, values)

    if alone:
        return KafkaCluster([node(1, "broker,controller", *free_ports(1))()], None)
    starts = [node(number + 1, "broker", port) for number, port in enumerate(free_ports(brokers))]
    starts.append(node(_CONTROLLER, "controller", controller_port))
    with ThreadPoolExecutor(len(starts)) as together:  # a broker waits for the controller
        *nodes, controller = together.map(lambda start: start(), starts)
    return KafkaCluster(nodes, controller)


def _start_node(work: Path, number: int, port: int, cluster: str, values: dict[str, object]) -> KafkaNode:
    (work / "data").mkdir(parents=True)
    # What `kafka.tools.StorageTool format` writes; it would take a second.
    meta = f"version=1\ncluster.id={cluster}\nnode.id={number}\ndirectory.id={_id()}\n"
    (work / "data" / "meta.properties").write_text(meta, encoding="utf-8")
    text = (CONFIGURATION / "kafka.properties").read_text(encoding="utf-8")
    for name, value in {**values, "WORK": work}.items():
        text = text.replace(f"@{name}@", str(value))
    (work / "server.properties").write_text(text, encoding="utf-8")
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else program("java")
    argv = [java, *_MEMORY, "-cp", f"{KAFKA_JARS}/*", "kafka.Kafka", work / "server.properties"]
    return KafkaNode(number, argv, port, work)


def _id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
