"""Connections to the DRPC server: how many, how long they wait for a body, in which order they are answered."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from tests.drpc.test_server import ask, served
from tests.harness.commands import until
from tests.harness.drpc_functions import echo
from trident.drpc import DRPCClient, DRPCServer
from trident.errors import DRPCExecutionException

pytestmark = pytest.mark.slow

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
