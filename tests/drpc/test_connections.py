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
from trident.serving.connections import MAX_HEAD_BYTES, MAX_HEADERS

HEAD = b"POST /drpc/echo HTTP/1.1\r\nHost: x\r\n"
TIMEOUT_S = 0.3


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
        b"POST /drpc/none HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nab",
        b"HTTP/1.1 404 ",
    ),
    "half a second request": (HEAD + b"Content-Length: 1\r\n\r\na" + HEAD, b"HTTP/1.1 200 "),
}


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
        state = server._server.server.server_state
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
        connection.sendall(b"POST /drpc/f HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nano request\r\n\r\n")
        assert rest_of(connection) == b""
        GATES.open("request")


def test_requests_that_wait_for_one_another_are_answered_in_order() -> None:
    with served(echo()) as (_, server), connected(server) as connection:
        requests = [HEAD + b"Content-Length: 1\r\n\r\n%d" % number for number in range(5)]
        connection.sendall(b"".join(requests) + b"GET /drpc HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
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
        until(lambda: not server._server.server.server_state.connections, "all have gone")
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


@contextmanager
def few_descriptors(most: int) -> Iterator[None]:
    """For the processes that are started meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


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
