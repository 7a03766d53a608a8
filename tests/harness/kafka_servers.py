"""A Kafka of one broker or of several for tests: processes that are killed, paused and restarted one by one.

One broker is one process, which is the controller too. Several brokers have a controller of their own, a process that no
test kills: without it a Kafka of two brokers answers nobody after one of them has died.
"""

import base64
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.harness.servers import QUICK_JAVA, Server, Servers, free_ports, jars_of, java, write_settings

_CONTROLLER = 100  # its node id where it is a process of its own


class KafkaNode(Server):
    """One process of a Kafka. Its port may answer before the controller lets it serve."""

    def __init__(self, node: int, argv: list[object], port: int, work: Path) -> None:
        self.node = node
        super().__init__(f"kafka node {node}", argv, port, work, b"Kafka Server started")


class KafkaCluster(Servers):
    """All processes of a Kafka; the brokers hold data. One alone is never killed."""

    def __init__(self, brokers: list[KafkaNode], *controller: KafkaNode) -> None:
        super().__init__(brokers, controller)
        self.brokers = brokers

    @property
    def bootstrap(self) -> str:
        """What a client is given as `bootstrap.servers`."""
        return self.addresses

    def leader(self, topic: str, partition: int = 0) -> KafkaNode:
        found = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(topic, timeout=30)
        return self.brokers[found.topics[topic].partitions[partition].leader - 1]


def start_kafka(work: Path, brokers: int = 1) -> KafkaCluster:
    """Start a Kafka in 2 to 5 seconds; each broker has a copy of every partition, if a topic has no fewer copies."""
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
        return KafkaCluster([node(1, "broker,controller", *free_ports(1))()])
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
    settings = write_settings(work, "kafka.properties", **values)
    argv = [java(), "-Xms32m", "-Xmx192m", *QUICK_JAVA, "-cp", jars_of("kafka"), "kafka.Kafka", settings]
    return KafkaNode(number, argv, port, work)


def _id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
