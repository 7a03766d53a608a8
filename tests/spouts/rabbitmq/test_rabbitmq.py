"""A RabbitMQ queue: what goes back to the broker, how failures are counted there, and what is refused."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

import pika
import psutil
import pytest

from spouts import RabbitMQSpout
from spouts.messages import spout as message_spout
from spouts.rabbitmq import Json
from spouts.rabbitmq.options import RabbitMQOptions
from tests.harness.commands import until
from tests.harness.rabbit_servers import RabbitServer
from tests.harness.servers import free_ports
from tests.spouts.messages.driving import Task
from tests.spouts.messages.places import FIELDS, RabbitPlace
from trident.errors import ConfigError, SpoutError


@pytest.fixture(params=["classic", "quorum"])
def place(rabbitmq_server: RabbitServer, request: pytest.FixtureRequest) -> RabbitPlace:
    return RabbitPlace(rabbitmq_server.url, request.param)


@pytest.fixture
def classic(rabbitmq_server: RabbitServer) -> RabbitPlace:
    return RabbitPlace(rabbitmq_server.url)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_spout, "_START_S", 0.2)


def _fail_once(task: Task) -> Any:
    ((values, id_),) = task.take(1)
    task.spout.fail(id_)
    return values


@pytest.mark.sample(1)
def test_failures_are_counted_over_tasks(place: RabbitPlace) -> None:
    place.fill([1])
    options: dict[str, Any] = {"max_failures": 6, "first_pause_s": 0.01, "longest_pause_s": 0.02, "dead_letters": True}
    task = Task(place.spout(**options))
    for _ in range(3):
        _fail_once(task)
    task.close()
    last = Task(place.spout(**options))
    emitted = last.drain(lambda: last.errors, lambda _: True)
    last.close()
    assert 1 <= len(emitted) <= 3
    (letter,) = place.dead()
    assert letter["failures"] == 6
    assert letter["x-trident-queue"] == place.queue
    assert place.left() == 0


def test_a_quorum_queue_counts_deliveries_to_tasks_that_died(rabbitmq_server: RabbitServer) -> None:
    place = RabbitPlace(rabbitmq_server.url, "quorum")
    place.fill([1])
    for _ in range(3):
        task = Task(place.spout(max_failures=3, dead_letters=True))
        task.take(1)
        task.close()
    last = Task(place.spout(max_failures=3, dead_letters=True))
    last.until(lambda: last.errors)
    assert not last.collector.emitted
    last.close()
    assert len(place.dead()) == 1


def test_a_retried_message_keeps_its_properties_and_where_it_came_from(classic: RabbitPlace) -> None:
    with classic.channel() as channel:
        channel.exchange_declare("news", "topic")
        channel.queue_bind(classic.queue, "news", "sport.#")
        properties = pika.BasicProperties(
            message_id="m1", headers={"mine": 1}, delivery_mode=2, content_type="text/plain"
        )
        channel.basic_publish("news", "sport.chess", b"mate", properties, mandatory=True)
    fields = "value, routing_key, exchange, message_id"
    spout = classic.spout(value="text", fields=fields, first_pause_s=0.01, max_failures=4, dead_letters=True)
    task = Task(spout)
    seen = task.drain(lambda: task.errors, lambda _: True)
    assert seen == [("mate", "sport.chess", "news", "m1")] * 4
    task.close()
    (letter,) = classic.dead()
    assert (letter["content"], letter["mine"], letter["x-trident-exchange"]) == (b"mate", 1, "news")


def test_a_dead_letter_that_is_put_back_is_tried_as_often_as_a_new_one(place: RabbitPlace) -> None:
    place.fill([1])
    options: dict[str, Any] = {"max_failures": 3, "first_pause_s": 0.01, "dead_letters": True}
    task = Task(place.spout(**options))
    assert len(task.drain(lambda: task.errors, lambda _: True)) == 3
    with place.channel() as channel:
        _, properties, body = channel.basic_get(place.dead_queue, auto_ack=True)
        channel.basic_publish("", place.queue, body, properties, mandatory=True)
    assert len(task.drain(lambda: len(task.errors) == 2, lambda _: True)) == 3
    task.close()
    assert f"a message of the queue '{place.queue}' is a dead letter" in task.errors[0]


def test_what_was_not_emitted_goes_to_others_when_the_spout_is_deactivated(place: RabbitPlace) -> None:
    place.fill(range(5))
    task = Task(place.spout())
    taken = task.take(1)
    task.spout.deactivate()
    until(lambda: place.left() == 4, "four messages are back on the queue")
    other = Task(place.spout())
    assert len(other.take(4)) == 4
    task.spout.activate()
    task.spout.ack(taken[0][1])
    task.until(lambda: not task.spout.pending)
    other.close()
    assert len(task.take(4)) == 4
    task.close()


@pytest.mark.long
def test_it_goes_on_after_a_restart_of_the_broker(rabbitmq_server: RabbitServer) -> None:
    place = RabbitPlace(rabbitmq_server.url)
    place.fill(range(6))
    task = Task(place.spout(max_pending=4))
    taken = task.take(4)
    task.spout.ack(taken[0][1])
    task.until(lambda: task.spout.pending == 4 and task.collector.emitted)  # another one came, so the first is acked
    rabbitmq_server.kill()
    try:
        task.spout.ack(taken[1][1])  # which the broker never hears
        task.until(lambda: task.errors)
        task.spout.fail(taken[2][1])
        assert "is the broker up, and its address right?" in task.errors[0]
        assert task.spout.pending == 0, "all of it goes back to the queue"
        task.collector.emitted.clear()
    finally:
        rabbitmq_server.start()
    seen = task.drain(lambda: place.left() == 0 and not task.spout.pending)
    assert sorted({values[0] for values in seen} | {"w0"}) == [f"w{n}" for n in range(6)]
    assert len(task.errors) == 1
    task.close()


def test_a_queue_that_is_deleted_ends_the_worker(classic: RabbitPlace) -> None:
    classic.fill([1])
    task = Task(classic.spout())
    task.take(1)
    with classic.channel() as channel:
        channel.queue_delete(classic.queue)
    with pytest.raises(SpoutError, match="no queue.*create it, or correct its name"):
        task.until(lambda: False)
    task.close()
    assert "was it deleted?" in task.errors[0]


def test_a_dead_letter_whose_queue_was_deleted_stays_on_its_own_queue(classic: RabbitPlace) -> None:
    classic.fill([1])
    task = Task(classic.spout(max_failures=1, dead_letters=True, longest_pause_s=0.3))
    with classic.channel() as channel:
        channel.queue_delete(classic.dead_queue)
    _fail_once(task)
    task.until(lambda: task.errors)
    assert "there is no such queue. Create it" in task.errors[0]
    assert task.spout.pending == 1
    with classic.channel() as channel:
        channel.queue_declare(classic.dead_queue, durable=True)
    task.until(lambda: not task.spout.pending)
    task.close()
    assert len(classic.dead()) == 1


def test_acknowledgements_in_another_order_reach_the_broker(classic: RabbitPlace) -> None:
    classic.fill(range(6))
    task = Task(classic.spout())
    ids = [id_ for _, id_ in task.take(6)]
    for at in (4, 1, 0, 2):
        task.spout.ack(ids[at])
    task.until(lambda: task.spout.pending == 2)
    task.close()
    again = Task(classic.spout())
    assert sorted(values[0] for values, _ in again.take(2)) == ["w3", "w5"]
    again.close()


def test_a_broker_that_is_not_there_is_named(impatient: None) -> None:
    (port,) = free_ports(1)
    spout = RabbitMQSpout(f"amqp://user:secret@127.0.0.1:{port}/%2F", "q")
    pattern = f"connecting on RabbitMQ 127.0.0.1:{port}: Connection refused; is the broker up.*tried for 0.2 seconds"
    with pytest.raises(SpoutError, match=pattern) as found:
        Task(spout)
    assert "secret" not in str(found.value)
    with pytest.raises(SpoutError, match="Name or service not known"):
        Task(RabbitMQSpout("amqp://no-such-host.invalid/", "q"))


def test_what_does_not_speak_amqp_is_told(impatient: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):  # the end of the test
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(8)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(SpoutError, match="what answers there may not speak AMQP; is the broker up"):
            Task(RabbitMQSpout(f"amqp://127.0.0.1:{server.getsockname()[1]}/", "q"))
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"url": "amqp://guest:wrong@{address}/"}, "Login was refused.*check user and password"),
        ({"password": "wrong"}, "check user and password"),
        ({"url": "amqp://guest:guest@{address}/nowhere"}, "vhost nowhere not found.*create it"),
        ({"queue": "nothing"}, "looking for the queue 'nothing'.*no queue.*creates no queue"),
        ({"dead_letters": "nothing"}, "looking for the queue 'nothing'"),
    ],
)
def test_what_is_not_there_or_not_permitted_is_told(classic: RabbitPlace, change: dict[str, str], text: str) -> None:
    address = classic.url.partition("@")[2].partition("/")[0]
    given = {"url": classic.url, "queue": classic.queue, **change}
    with pytest.raises(SpoutError, match=text):
        Task(RabbitMQSpout(given.pop("url").format(address=address), given.pop("queue"), **given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "http://h"}, "starts with 'http'; write amqp://"),
        ({"url": "amqp://h:port/"}, "cannot be read; write amqp://"),
        ({"url": "amqp://h/?color=1"}, "Unknown URL parameter"),
        ({"queue": ""}, "queue=''"),
        ({"dead_letters": "q"}, "dead_letters='q' is the queue that is read"),
        ({"fields": "value, size"}, "fields='value, size': each at most once"),
        ({"value": "xml"}, "value='xml'"),
        ({"max_pending": 70_000}, "at most 65535"),
        ({"heartbeat_s": -1}, "heartbeat_s=-1"),
        ({"tls_verify": False}, "TLS options and no TLS"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], text: str) -> None:
    given = {"url": "amqp://h", "queue": "q", **options}
    with pytest.raises(ConfigError, match=text):
        RabbitMQSpout(**given)


def test_its_text_shows_no_password() -> None:
    assert "secret" not in repr(RabbitMQSpout("amqp://u:secret@h", "q", password="secret", value=Json(FIELDS)))


def test_options_reach_the_connection() -> None:
    found = RabbitMQOptions("amqps://u:p@h:5/v?heartbeat=7", password="x", connect_timeout_s=2.0).parameters()
    assert (found.host, found.port, found.virtual_host, found.heartbeat, found.socket_timeout) == ("h", 5, "v", 7, 2.0)
    assert (found.credentials.username, found.credentials.password) == ("u", "x")
    assert found.ssl_options is not None
    assert RabbitMQOptions("amqp://h").parameters().heartbeat == 60
    assert RabbitMQOptions("amqp://u:p@h:5/v%2Fw").place == "h:5/v%2Fw"


def test_tls_is_that_of_another_url() -> None:
    encrypted = RabbitMQOptions("amqp://h/v", tls=True)
    found, same = encrypted.parameters(), RabbitMQOptions("amqps://h/v").parameters()
    assert found.ssl_options is not None
    assert (found.port, encrypted.place) == (same.port, "h/v")
    with pytest.raises(ConfigError, match=r"read the TLS files .*none\.pem"):
        RabbitMQOptions("amqp://h", tls=True, tls_ca_file="none.pem").parameters()


def test_a_closed_spout_leaves_no_connection(classic: RabbitPlace) -> None:
    port = int(classic.url.partition("@")[2].partition("/")[0].partition(":")[2])

    def opened() -> int:
        return sum(1 for each in psutil.Process().net_connections("tcp") if each.raddr and each.raddr.port == port)

    before = opened()
    task = Task(classic.spout())
    assert opened() == before + 1
    task.close()
    assert opened() == before
