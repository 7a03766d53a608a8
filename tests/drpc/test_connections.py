"""Connections to the DRPC server: how many, how large a head, how long; and no client ends the topology."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.drpc.test_drpc_command import IN_PROCESS, MODULE, address
from tests.drpc.test_local import failing, occupied
from tests.drpc.test_server import ask, served
from tests.harness.commands import last_txid, started, until, write_module
from tests.harness.drpc_functions import echo
from tests.harness.topology_runs import GATES
from trident import TridentTopology
from trident.drpc import DRPCClient, DRPCServer
from trident.errors import DRPCExecutionException
from trident.http import connections
from trident.http.connections import MAX_HEAD_BYTES, MAX_HEADERS
from trident.ui.one_topology import OneTopology
from trident.ui.ui_server import UIServer

pytestmark = pytest.mark.slow

HEAD = b"POST /drpc/echo HTTP/1.1\r\nHost: localhost\r\n"
TIMEOUT_S = 0.3


def connected(server: DRPCServer | UIServer, address: str = "127.0.0.1") -> socket.socket:
    """Connect from an address of this machine; Linux has all that begin with 127."""
    return socket.create_connection(("127.0.0.1", server.port), timeout=20, source_address=(address, 0))


def rest_of(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection; it fails where that takes 20 seconds."""
    received = b""
    try:
        while data := connection.recv(1 << 16):
            received += data
    except ConnectionError:
        pass
    return received


def refused(connection: socket.socket, data: bytes) -> bool:
    """Send the same again and again, 16 MiB; True if that was stopped."""
    try:
        for _ in range((16 << 20) // len(data)):
            connection.sendall(data)
    except ConnectionError:
        return True
    return False


def problem(received: bytes) -> Any:
    return json.loads(received.partition(b"\r\n\r\n")[2])["error"]


HELD = {
    "nothing": (b"", b""),
    "line ends": (b"\r\n", b""),
    "half a request line": (b"POST /drp", b"HTTP/1.1 408 "),
    "half a head": (HEAD + b"Content-Le", b"HTTP/1.1 408 "),
    "half a body": (HEAD + b"Content-Length: 10\r\n\r\nab", b"HTTP/1.1 504 "),
    "half a body of an unknown function": (
        b"POST /drpc/none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nab",
        b"HTTP/1.1 404 ",
    ),
    "half a second request": (HEAD + b"Content-Length: 1\r\n\r\na" + HEAD, b"HTTP/1.1 200 "),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", HELD)
def test_what_is_not_sent_in_time_ends_the_connection(name: str) -> None:
    sent, answered = HELD[name]
    with served(echo(), timeout_s=TIMEOUT_S) as (_, server), connected(server) as connection:
        connection.sendall(sent)
        assert rest_of(connection).startswith(answered)


def test_a_line_end_after_an_answer_does_not_keep_a_connection() -> None:
    with served(echo(), timeout_s=TIMEOUT_S) as (_, server), connected(server) as connection:
        connection.sendall(HEAD + b"Content-Length: 1\r\n\r\na")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"\r\n")
        assert rest_of(connection) == b""


def test_bytes_that_drip_do_not_win_time() -> None:
    with served(echo(), timeout_s=TIMEOUT_S) as (_, server), connected(server) as connection:
        connection.settimeout(0.05)
        received = None
        for byte in HEAD * 1000:
            try:
                connection.sendall(bytes([byte]))
                received = connection.recv(100)
                break
            except TimeoutError:
                pass
        assert received is not None
        assert received.startswith(b"HTTP/1.1 408 ")


def test_an_answer_that_nobody_takes_ends_the_connection() -> None:
    topology = TridentTopology("long")
    topology.new_drpc_stream("echo").map(lambda row: ("a" * (16 << 20),), "out: string")
    with served(topology, timeout_s=TIMEOUT_S) as (_, server), connected(server) as connection:
        connection.sendall(HEAD + b"Content-Length: 1\r\n\r\na")
        state = server.server.server_state
        until(lambda: state.total_requests == 1 and not state.connections, "answered and given up")
        assert len(rest_of(connection)) < 16 << 20


LONG = b"a" * MAX_HEAD_BYTES
TOO_LARGE: dict[str, list[bytes]] = {
    "one line": [b"POST /drpc/" + LONG],
    "one header, in pieces": [HEAD + b"Name: ", *[LONG[:4000]] * 5],
    "many bytes at once": [HEAD + b"".join(b"Name%d: " % n + b"a" * 900 + b"\r\n" for n in range(20)) + b"\r\n"],
    "many headers": [HEAD + b"a:b\r\n" * (MAX_HEADERS + 1)],
    "what follows the body": [HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", b"Name: " + LONG],
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_heads_that_are_too_large_are_refused(name: str) -> None:
    with served(failing(), token="t") as (_, server), connected(server) as connection:
        try:
            for piece in TOO_LARGE[name]:
                connection.sendall(piece)
        except ConnectionError:
            pass
        answer = rest_of(connection)
    if name == "what follows the body":  # the token was asked for before
        assert answer.startswith(b"HTTP/1.1 401 ")
    else:
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert problem(answer)["cause"] == "the head of a request may have 16384 bytes and 100 headers"


def test_what_follows_a_body_is_bounded_too() -> None:
    with served(echo()) as (_, server), connected(server) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n")
        assert refused(connection, b"Name: " + LONG)


def test_a_body_in_many_small_pieces_is_no_large_head() -> None:
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


def test_no_answer_is_taken_for_that_of_the_request_before() -> None:
    with served(failing()) as (drpc, server), connected(server) as connection:
        occupied(drpc, "f")
        connection.sendall(b"POST /drpc/f HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nano request\r\n\r\n")
        assert rest_of(connection) == b""
        GATES.open("request")


def test_requests_that_wait_for_one_another_are_answered_in_order() -> None:
    with served(echo()) as (_, server), connected(server) as connection:
        requests = [HEAD + b"Content-Length: 1\r\n\r\n%d" % number for number in range(5)]
        connection.sendall(b"".join(requests) + b"GET /drpc HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answers = [part for part in rest_of(connection).split(b"HTTP/1.1 200 OK") if part]
        assert [part[-7:-1] for part in answers[:5]] == [b'[["%d"]' % number for number in range(5)]
        assert answers[5].endswith(b'"functions": ["echo"]}')


def test_connections_beyond_the_bound_are_refused_and_room_is_made_again() -> None:
    with served(echo(), max_connections=3) as (_, server), DRPCClient(server.url) as client:
        with ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(connected(server)).sendall(HEAD)
            with pytest.raises(DRPCExecutionException, match="3 connections are open") as error:
                client.execute("echo", "a")
            assert error.value.reason == "overloaded"
        until(lambda: not server.server.server_state.connections, "all have gone")
        assert client.execute("echo", "a") == [["a"]]


def functions_asked_from(server: DRPCServer, address: str) -> bytes:
    with connected(server, address) as connection:
        connection.sendall(b"GET /drpc HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return rest_of(connection)[:13]


def until_heads_begun(server: DRPCServer | UIServer, number: int) -> None:
    def begun() -> int:
        return sum(getattr(each, "_awaits", "") == "head" for each in server.server.server_state.connections.copy())

    until(lambda: begun() == number, f"{number} heads are begun")


@pytest.mark.parametrize(
    "held",
    {
        "nothing": b"",
        "half a head": HEAD,
        "half a body": HEAD + b"Content-Length: 9\r\n\r\nab",
        "one that was answered": HEAD + b"Content-Length: 1\r\n\r\na",
    }.items(),
    ids=lambda item: item[0],
)
def test_one_address_that_holds_all_connections_gives_way_to_others(
    held: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trident.http.connections.HEAD_S", 60.0)  # none is late, however busy the machine is
    with served(echo(), max_connections=8) as (_, server), ExitStack() as stack:
        greedy = [stack.enter_context(connected(server)) for _ in range(8)]
        for number, connection in enumerate(greedy, 1):
            connection.sendall(held[1])
            if held[0] == "half a head":  # the server reads in whichever order what came at once
                until_heads_begun(server, number)
            if held[0] == "one that was answered":
                connection.recv(1000)
        until(lambda: len(server.server.server_state.connections) == 8, "all are taken")
        assert functions_asked_from(server, "127.0.0.2") == b"HTTP/1.1 200 "
        taken = [stack.enter_context(connected(server, "127.0.0.2")) for _ in range(3)]
        for connection in taken:
            connection.sendall(HEAD + b"Content-Length: 1\r\n\r\na")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        if held[0] == "half a head":  # the first that came is the first that goes
            assert rest_of(greedy[0]).startswith(b"HTTP/1.1 503 ")
        assert functions_asked_from(server, "127.0.0.1") == b"HTTP/1.1 503 "


def test_a_request_at_work_gives_way_to_nobody() -> None:
    with served(failing(), max_connections=2) as (drpc, server), ExitStack() as stack:
        occupied(drpc, "f")
        held = [stack.enter_context(connected(server)) for _ in range(2)]
        for connection in held:
            connection.sendall(b"POST /drpc/f HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\na")
        until(lambda: drpc.function("f").waiting == 2, "both wait for their answers")
        assert functions_asked_from(server, "127.0.0.2") == b"HTTP/1.1 503 "
        GATES.open("request")
        for connection in held:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_half_sent_requests_do_not_keep_others_from_the_page() -> None:
    noted: Any = None
    with UIServer(OneTopology("a", noted), port=0) as server, ExitStack() as stack:
        for _ in range(256):
            stack.enter_context(connected(server)).sendall(b"GET /api/v1/page HTTP/1.1\r\nHost: local")
        until(lambda: len(server.server.server_state.connections) == 256, "all are taken")
        for _ in range(5):
            with connected(server, "127.0.0.2") as connection:
                connection.sendall(b"GET /api/v1/page HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert rest_of(connection).startswith(b"HTTP/1.1 200 ")


def test_the_head_of_a_request_has_a_deadline_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", TIMEOUT_S)
    with served(echo(), timeout_s=60.0) as (_, server), connected(server) as connection:
        connection.sendall(HEAD + b"Content-Length: 2\r\n\r\na")  # a body has the request's own time
        with connected(server) as half:
            half.sendall(HEAD)
            assert problem(rest_of(half))["cause"] == "no complete head of a request within 0.3 s"
        with connected(server) as second:
            second.sendall(HEAD + b"Content-Length: 1\r\n\r\na" + HEAD)
            assert rest_of(second).count(b"HTTP/1.1 408 ") == 1
        connection.sendall(b"b")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_a_lone_surrogate_is_no_text() -> None:
    with served(echo()) as (drpc, server), DRPCClient(server.url) as client:
        status, answer, _ = ask(server, "POST", "/drpc/echo", rb'{"args": "\ud800"}', Content_Type="application/json")
        assert (status, answer["error"]["reason"]) == (400, "invalid")
        for asked in (client, drpc):
            with pytest.raises(DRPCExecutionException, match="UTF-8") as error:
                asked.execute("echo", "\ud800")
            assert error.value.reason == "invalid"
        assert client.execute("echo", "\U0001f600") == [["\U0001f600"]]


@contextmanager
def few_descriptors(most: int) -> Iterator[None]:
    """For the processes that are started meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.long
@pytest.mark.slow
def test_clients_leave_the_topology_its_file_descriptors(tmp_path: Path) -> None:
    write_module(tmp_path, "module", MODULE)
    words = ("run", "module:endless", "--conf", "batch_emit_interval_ms=20", "--drpc-port", "0", *IN_PROCESS)
    with ExitStack() as stack:
        here = len(list(Path("/proc/self/fd").iterdir()))  # of the process that starts it, which needs some more
        with few_descriptors(256 + here):
            run = stack.enter_context(started(*words, cwd=tmp_path))
        port = int(address(run).rpartition(":")[2])
        for _ in range(400 + here):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            connection.sendall(b"POST /drp")
        log = tmp_path / "trident-log" / "word-count"
        before = last_txid(log)
        until(lambda: run.process.poll() is not None or last_txid(log) > before + 20, "twenty more batches")
        assert run.process.poll() is None, run.end()[2]
