"""DRPC over HTTP: the answers, and what is refused with which status; how many connections, how long they wait for a body."""

import http.client
import json
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.drpc.test_local import failing, occupied
from tests.harness.commands import until
from tests.harness.drpc_functions import echo, word_counts
from tests.harness.topology_runs import GATES, start
from trident import TridentTopology
from trident import drpc as drpc_package
from trident.cli.changes import ChangeServer
from trident.drpc import DRPCClient, DRPCServer, LocalDRPC
from trident.errors import ConfigError, DRPCExecutionException, EnvironmentProblem
from trident.observe.open_metrics import Metrics, MetricsServer
from trident.web.cluster_pages import HttpTopologyPages
from trident.web.rest import UIServer

pytestmark = pytest.mark.slow  # each test starts an HTTP server


@contextmanager
def served(topology: TridentTopology, **limits: Any) -> Iterator[tuple[LocalDRPC, DRPCServer]]:
    with LocalDRPC(topology) as drpc, DRPCServer(drpc, port=0, **limits) as server:
        yield drpc, server


def ask(server: DRPCServer, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, json.loads(response.read()), response.headers
    finally:
        connection.close()


def test_the_tutorials_words_are_counted_over_http() -> None:
    topology, _ = word_counts()
    with start(topology, "in_process") as running:
        running.process_all_available()
        with DRPCServer(running.local_drpc(), port=0) as server, DRPCClient(server.url) as client:
            assert client.execute("words", "cat dog the man") == [[5]]
            assert client.functions() == ["words"]
            body = json.dumps({"args": "cat dog the man"})
            assert ask(server, "POST", "/drpc/words", body, Content_Type="application/json")[:2] == (200, [[5]])
            assert ask(server, "POST", "/drpc/words", "the man", Content_Type="text/plain")[:2] == (200, [[5]])
            assert ask(server, "GET", "/drpc")[:2] == (200, {"topology": "word-count", "functions": ["words"]})
            health = {"status": "ok", "topology": "word-count", "txid": 2}
            assert ask(server, "GET", "/health")[:2] == (200, health)
            running.stop()
            assert ask(server, "GET", "/health")[:2] == (503, {"status": "stopped"})
            with pytest.raises(DRPCExecutionException, match="stopped"):
                client.execute("words", "the")


def test_parallel_clients_get_their_own_answers() -> None:
    with served(echo()) as (_, server), DRPCClient(server.url) as client, ThreadPoolExecutor(16) as pool:
        args = [f"request {number} – ü" for number in range(800)]
        assert list(pool.map(lambda one: client.execute("echo", one), args)) == [[[one]] for one in args]


def test_a_client_keeps_its_connection_until_the_server_is_restarted() -> None:
    with LocalDRPC(echo()) as drpc, DRPCServer(drpc, port=0) as server, DRPCClient(server.url) as client:
        client.execute("echo", "a")
        connection = client._connection().sock
        assert connection is not None
        client.execute("echo", "b")
        assert client._connection().sock is connection
        server.stop()
        with pytest.raises(DRPCExecutionException, match=r"'echo' gave no answer \(unreachable\)") as refused:
            client.execute("echo", "c")
        assert refused.value.reason == "unreachable"
        with DRPCServer(drpc, port=server.port):
            assert client.execute("echo", "d") == [["d"]]


def test_a_request_that_fails_says_where_and_why() -> None:
    with served(failing()) as (_, server), DRPCClient(server.url) as client:
        with pytest.raises(DRPCExecutionException) as raised:
            client.execute("f", "bad")
        assert (raised.value.reason, raised.value.step) == ("failed", "drpc:f/Failing")
        assert "KeyError: 'bad word' on tuple" in raised.value.cause
        status, problem, _ = ask(server, "POST", "/drpc/f", "bad")
        assert (status, {*problem["error"]}) == (500, {"function", "reason", "step", "cause"})


def test_what_takes_too_long_is_given_up() -> None:
    with served(failing(), timeout_s=0.2) as (drpc, server), DRPCClient(server.url) as client:
        first = occupied(drpc, "f")
        with pytest.raises(DRPCExecutionException, match=r"\(timeout\): no answer within 0.2 s"):
            client.execute("f", "a")
        assert ask(server, "POST", "/drpc/f", "a")[0] == 504
        assert drpc.function("f").waiting == 0
        GATES.open("request")
        assert first.result(30) == [["WAIT"]]
        assert client.execute("f", "a") == [["A"]]


def test_a_client_gives_up_by_itself() -> None:
    with served(failing()) as (drpc, server), DRPCClient(server.url, timeout=0.2) as client:
        occupied(drpc, "f")
        with pytest.raises(DRPCExecutionException, match=r"\(timeout\): no answer from http://.* within 0.2 s"):
            client.execute("f", "a")
        GATES.open("request")


def test_more_requests_than_may_be_in_flight_are_refused() -> None:
    with served(failing(), max_concurrency=2) as (drpc, server), DRPCClient(server.url) as client:
        first = occupied(drpc, "f")
        with ThreadPoolExecutor(2) as pool:
            admitted = [pool.submit(client.execute, "f", one) for one in "ab"]
            while drpc.function("f").waiting < 2:
                assert not first.done()
            status, problem, headers = ask(server, "POST", "/drpc/f", "c")
            assert (status, headers["Retry-After"], problem["error"]["reason"]) == (503, "1", "overloaded")
            assert "2 requests are in flight" in problem["error"]["cause"]
            GATES.open("request")
            assert [one.result(30) for one in admitted] == [[["A"]], [["B"]]]
        assert client.execute("f", "c") == [["C"]]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_that_is_too_long_is_refused(chunked: bool) -> None:
    with served(echo(), max_request_bytes=100) as (_, server):
        body: Any = iter([b"a" * 60, b"a" * 60]) if chunked else b"a" * 101
        status, problem, _ = ask(server, "POST", "/drpc/echo", body)
        assert (status, problem["error"]["reason"]) == (413, "too_large")
        assert ask(server, "POST", "/drpc/echo", b"a" * 100)[:2] == (200, [["a" * 100]])


@pytest.mark.parametrize("token", ["schlüssel ключ", "мех", "voilà"])
def test_a_token_may_be_any_text(token: str) -> None:
    with served(echo(), token=token) as (_, server), DRPCClient(server.url, token) as client:
        assert client.execute("echo", "a") == [["a"]]


@pytest.mark.parametrize("token", ["hush\n", " hush", "hu\nsh", "hush\udce9", " ", ""])
def test_a_token_that_no_request_can_have_is_refused_and_not_said(token: str) -> None:
    opened: Any = None
    with LocalDRPC(echo()) as drpc:
        for use in (
            lambda: DRPCServer(drpc, port=0, token=token),
            lambda: UIServer(opened, port=0, token=token),
            lambda: ChangeServer(opened, token=token),
            lambda: DRPCClient("http://localhost:1", token),
            lambda: HttpTopologyPages("http://localhost:1", token, "t"),
        ):
            with pytest.raises(ConfigError, match="a token must be one line of text") as refused:
                use()
            assert "hu" not in str(refused.value)


def test_only_who_has_the_token_may_ask() -> None:
    with served(echo(), token="geheim") as (_, server):
        assert DRPCClient(server.url, token="geheim").execute("echo", "a") == [["a"]]
        for client in (DRPCClient(server.url), DRPCClient(server.url, token="geheimer"), DRPCClient(server.url, "ü")):
            with client, pytest.raises(DRPCExecutionException, match=r"\(unauthorized\)"):
                client.execute("echo", "a")
        status, _, headers = ask(server, "GET", "/drpc")
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert ask(server, "GET", "/health")[0] == 200


FOREIGN = {
    "a name that was made to lead here": {"Host": "evil.example"},
    "such a name, with the origin that is its own": {"Host": "evil.example:80", "Origin": "http://evil.example:80"},
    "a page of another site": {"Origin": "https://evil.example", "Content_Type": "text/plain"},
    "a file": {"Origin": "null"},
    "an origin that is none": {"Origin": "http://[::1"},
    "another server of this machine": {"Origin": "http://127.0.0.1:1"},
}


@pytest.mark.parametrize("token", [None, "t"])
@pytest.mark.parametrize("who", FOREIGN)
def test_a_page_of_another_site_cannot_run_a_function(who: str, token: str | None) -> None:
    allowed = {} if token is None else {"Authorization": f"Bearer {token}"}
    with served(failing(), token=token) as (drpc, server):
        before = drpc.function("f").waiting
        for method, path in (("POST", "/drpc/f"), ("GET", "/drpc"), ("GET", "/health"), ("OPTIONS", "/drpc/f")):
            status, answer, headers = ask(server, method, path, "a", **FOREIGN[who], **allowed)
            assert (status, answer["error"]["reason"]) == (403, "forbidden")
            assert headers["Connection"] == "close"
        assert drpc.function("f").waiting == before
        own = {"Host": f"localhost:{server.port}", "Origin": f"http://localhost:{server.port}", **allowed}
        assert ask(server, "POST", "/drpc/f", "a", **own)[:2] == (200, [["A"]])


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "status", "said"),
    [
        ("POST", "/drpc/nothing", "a", "text/plain", 404, "has the functions ['echo']"),
        ("POST", "/drpc/echo", "{", "application/json", 400, "expected a JSON object"),
        ("POST", "/drpc/echo", "[1]", "Application/JSON", 400, "expected a JSON object"),
        ("POST", "/drpc/echo", '{"args": 1}', "application/json; charset=utf-8", 400, "expected a JSON object"),
        ("POST", "/drpc/echo", '{"arg": "a"}', "application/json", 400, "expected a JSON object"),
        ("POST", "/drpc/echo", "[" * 100_000, "application/json", 400, "expected a JSON object"),
        ("POST", "/drpc/echo", b"\xff", "text/plain", 400, "in UTF-8"),
        ("GET", "/drpc/echo", None, "text/plain", 405, "this server has POST /drpc/FUNCTION"),
        ("POST", "/drpc/", "a", "text/plain", 404, "this server has POST /drpc/FUNCTION"),
        ("GET", "/", None, "text/plain", 404, "this server has POST /drpc/FUNCTION"),
    ],
)
def test_what_cannot_be_answered_is_explained(
    method: str, path: str, body: Any, kind: str, status: int, said: str
) -> None:
    with served(echo()) as (_, server):
        answer = ask(server, method, path, body, Content_Type=kind)
        assert answer[0] == status
        assert said in answer[1]["error"]["cause"]


VALUES: dict[str, tuple[str, Any, Any]] = {
    "bytes": ("binary", b"a\xff", "a\\xff"),
    "decimal": ("decimal(10,2)", Decimal("1.50"), "1.50"),
    "date": ("date", date(2026, 1, 2), "2026-01-02"),
    "timestamp": ("timestamp", datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02 00:00:00+00:00"),
    "list": ("array<bigint>", [1, None], [1, None]),
    "NaN": ("double", float("nan"), "nan"),
    "null": ("string", None, None),
    "text": ("string", "ü – \u0000", "ü – \u0000"),
}


@pytest.mark.parametrize("name", VALUES)
def test_every_value_has_a_form_in_json(name: str) -> None:
    type_, value, expected = VALUES[name]
    topology = TridentTopology("values")
    topology.new_drpc_stream("f").map(lambda row: (value,), f"out: {type_}")
    with served(topology) as (_, server), DRPCClient(server.url) as client:
        assert client.execute("f", "") == [[expected]]


def test_a_stopped_server_leaves_no_thread_and_frees_the_port() -> None:
    before = set(threading.enumerate())
    with served(echo()) as (_, server):
        assert DRPCClient(server.url).execute("echo", "a") == [["a"]]
        port = server.port
    assert set(threading.enumerate()) - before == set()
    with socket.create_server(("127.0.0.1", port)) as again:
        assert again.getsockname()[1] == port


def test_requests_in_flight_are_answered_before_the_server_stops() -> None:
    with LocalDRPC(failing()) as drpc, ThreadPoolExecutor(2) as pool:
        server = DRPCServer(drpc, port=0)
        GATES.clear()
        answer = pool.submit(DRPCClient(server.url).execute, "f", "wait")
        GATES.await_reached("request")
        stopped = pool.submit(server.stop)
        while not server.server.should_exit:
            assert not answer.done()
        GATES.open("request")
        assert answer.result(30) == [["WAIT"]]
        stopped.result(30)


@pytest.mark.parametrize(
    ("host", "port", "cause"),
    [("127.0.0.1", 65_536 + 4464, "a port is a number"), ("127.0.0.1", -1, "a port is a number"), ("a..b", 0, "idna")],
)
def test_an_address_that_cannot_be_one_is_refused(host: str, port: int, cause: str) -> None:
    with LocalDRPC(failing()) as drpc, pytest.raises(ConfigError, match=f"cannot listen on {host}:{port}: .*{cause}"):
        DRPCServer(drpc, host, port)
    with pytest.raises(ConfigError, match=f"metrics cannot be served at {host}:{port}: .*{cause}"):
        MetricsServer("t", Metrics("t"), host, port)


@pytest.mark.parametrize("limit", ["timeout_s", "max_request_bytes", "max_concurrency", "max_connections"])
def test_impossible_limits_are_refused(limit: str) -> None:
    limits: dict[str, Any] = {limit: 0}
    with LocalDRPC(failing()) as drpc, pytest.raises(ConfigError, match="of a DRPC server must"):
        DRPCServer(drpc, port=0, **limits)


@pytest.mark.parametrize("package", ["uvicorn", "starlette.applications"])
def test_without_its_packages_the_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "trident.drpc.server")
    with LocalDRPC(failing()) as drpc, pytest.raises(EnvironmentProblem, match=r"pip install 'trident-spark\[drpc\]'"):
        drpc_package.DRPCServer(drpc, port=0)


@pytest.mark.parametrize(
    "url", ["localhost:3774", "ftp://x", "http://", "http://x:65536", "http://x:http", "http://[::1"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of a DRPC server"):
        DRPCClient(url)


def test_an_answer_that_is_none_of_ours_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.1 502 Bad\r\nContent-Length: 5\r\n\r\nsorry")

        thread = threading.Thread(target=answer)
        thread.start()
        client = DRPCClient(f"http://127.0.0.1:{other.getsockname()[1]}")
        with client, pytest.raises(DRPCExecutionException, match="answered 502, but not as a DRPC server does.*sorry"):
            client.execute("f", "a")
        thread.join()


HEAD = b"POST /drpc/echo HTTP/1.1\r\nHost: localhost\r\n"


def connected(server: DRPCServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def rest_of(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection; it fails where that takes 20 seconds."""
    received = b""
    try:
        while data := connection.recv(1 << 16):
            received += data
    except ConnectionError:
        pass
    return received


def test_a_body_that_does_not_come_in_time_ends_the_connection() -> None:
    with served(echo(), timeout_s=0.3) as (_, server), connected(server) as connection:
        connection.sendall(HEAD + b"Content-Length: 10\r\n\r\nab")
        assert rest_of(connection).startswith(b"HTTP/1.1 504 ")


def test_a_head_that_does_not_end_is_refused() -> None:
    with served(echo()) as (_, server), connected(server) as connection:
        connection.sendall(HEAD + b"X-Long: " + b"a" * (17 << 10))
        assert rest_of(connection).startswith(b"HTTP/1.1 400 ")
        assert ask(server, "POST", "/drpc/echo", b"a")[0] == 200


def test_a_body_may_come_in_many_small_pieces() -> None:
    with served(echo()) as (_, server):
        pieces = [b"word "] * 10_000
        status, answer, _ = ask(server, "POST", "/drpc/echo", iter(pieces))
        assert (status, answer) == (200, [["word " * 10_000]])


def test_the_token_is_looked_at_before_a_body() -> None:
    with served(echo(), token="t") as (_, server), connected(server) as connection:
        connection.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n")
        received = rest_of(connection)
        assert received.startswith(b"HTTP/1.1 401 ")
        assert b"\r\nconnection: close\r\n" in received


def test_requests_that_wait_for_one_another_are_answered_in_order() -> None:
    with served(echo()) as (_, server), connected(server) as connection:
        requests = [HEAD + b"Content-Length: 1\r\n\r\n%d" % number for number in range(5)]
        connection.sendall(b"".join(requests) + b"GET /drpc HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answers = [part for part in rest_of(connection).split(b"HTTP/1.1 200 OK") if part]
        assert [part[-7:-1] for part in answers[:5]] == [b'[["%d"]' % number for number in range(5)]
        assert answers[5].endswith(b'"functions":["echo"]}')


def test_while_too_many_connections_are_open_requests_are_refused() -> None:
    with served(echo(), max_connections=3) as (_, server), DRPCClient(server.url) as client:
        with ExitStack() as stack:
            held = [stack.enter_context(connected(server)) for _ in range(3)]
            until(lambda: len(server.server.server_state.connections) == 3, "all are taken")
            with pytest.raises(DRPCExecutionException, match="answered 503") as error:
                client.execute("echo", "a")
            assert error.value.reason == "overloaded"
            until(lambda: len(server.server.server_state.connections) == 3, "the one that was refused is gone")
            held[0].sendall(HEAD + b"Content-Length: 1\r\n\r\na")
            assert held[0].recv(1000).startswith(b"HTTP/1.1 200 ")
        until(lambda: not server.server.server_state.connections, "all have gone")
        assert client.execute("echo", "a") == [["a"]]


def test_many_half_sent_requests_keep_nobody_from_an_answer() -> None:
    with served(echo()) as (_, server), DRPCClient(server.url) as client, ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(connected(server)).sendall(HEAD)
        until(lambda: len(server.server.server_state.connections) == 300, "all are taken")
        assert client.execute("echo", "a") == [["a"]]


def test_a_lone_surrogate_is_no_text() -> None:
    with served(echo()) as (drpc, server), DRPCClient(server.url) as client:
        status, answer, _ = ask(server, "POST", "/drpc/echo", rb'{"args": "\ud800"}', Content_Type="application/json")
        assert (status, answer["error"]["reason"]) == (400, "invalid")
        for asked in (client, drpc):
            with pytest.raises(DRPCExecutionException, match="UTF-8") as error:
                asked.execute("echo", "\ud800")
            assert error.value.reason == "invalid"
        assert client.execute("echo", "\U0001f600") == [["\U0001f600"]]
