"""Asking a DRPC server over HTTP."""

import http.client
import json
import threading
import weakref
from typing import Any
from urllib.parse import quote, urlsplit

from trident.errors import ConfigError, DRPCExecutionException, describe
from trident.redaction import redacted
from trident.roles import Closes
from trident.servers.server_thread import bearer


class _Own(threading.local):
    connection: http.client.HTTPConnection | None = None


class DRPCClient(Closes):
    """Asks the functions of a DRPC server. May be used from many threads; each keeps a connection of its own.

    Parameters
    ----------
    url
        Where the server is, as in `http://localhost:3774`.
    token
        The server's token, if it asks for one.
    timeout
        Seconds after which a request is given up; the server has a limit of its own.
    """

    def __init__(self, url: str, token: str | None = None, timeout: float = 30.0) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:  # half an IPv6 address, or no port
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"{redacted(url)!r} is not the address of a DRPC server; expected one like http://localhost:3774"
            )
        self.url = url.rstrip("/")
        self._shown = redacted(self.url)
        self._secure, self._path, self._timeout = parts.scheme == "https", parts.path.rstrip("/"), timeout
        self._headers = {} if token is None else {"Authorization": bearer(token)}
        self._own = _Own()
        self._connections: weakref.WeakSet[http.client.HTTPConnection] = weakref.WeakSet()

    def execute(self, function: str, args: str) -> list[list[Any]]:
        """Ask a function; returns the rows of its last step, `[]` if there are none.

        Raises `DRPCExecutionException`: there was no answer; `reason`, `step` and `cause` say why. A request changes nothing
        and may be sent again.
        """
        if not isinstance(args, str):
            raise DRPCExecutionException(function, f"the arguments must be one text, got {args!r}", reason="invalid")
        body = json.dumps({"args": args}).encode()
        rows: list[list[Any]] = self._ask("POST", f"/drpc/{quote(function, safe='')}", function, body)
        return rows

    def functions(self) -> list[str]:
        """Return the names of the server's functions."""
        return list(self._ask("GET", "/drpc", "*")["functions"])

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._connections):
            connection.close()

    def __repr__(self) -> str:
        return f"DRPCClient({self._shown!r})"

    def _ask(self, method: str, path: str, function: str, body: bytes | None = None) -> Any:
        try:
            status, data = self._send(method, self._path + path, body)
        except TimeoutError:
            self._connection().close()
            cause = f"no answer from {self._shown} within {self._timeout} s"
            raise DRPCExecutionException(function, cause, reason="timeout") from None
        except (OSError, http.client.HTTPException) as error:
            self._connection().close()
            cause = f"{self._shown} cannot be reached ({describe(error)})"
            raise DRPCExecutionException(function, cause, reason="unreachable") from error
        try:
            answer = json.loads(data)
            if status == 200:
                return answer
            problem = answer["error"]
            raise DRPCExecutionException(function, problem["cause"], problem.get("step"), problem["reason"])
        except (ValueError, KeyError, TypeError) as error:
            cause = f"{self._shown} answered {status}, but not as a DRPC server does: {data[:200]!r}"
            reason = "overloaded" if status == 503 else "unreachable"
            raise DRPCExecutionException(function, cause, reason=reason) from error

    def _send(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Send on the open connection; if the server has closed it meanwhile, once more on a new one."""
        connection = self._connection()
        was_open = connection.sock is not None
        try:
            return self._exchange(connection, method, path, body)
        except (http.client.RemoteDisconnected, ConnectionError):
            connection.close()
            if not was_open:
                raise
        return self._exchange(connection, method, path, body)

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> tuple[int, bytes]:
        headers = self._headers if body is None else {**self._headers, "Content-Type": b"application/json"}
        try:
            connection.request(method, path, body, headers)
        except (BrokenPipeError, ConnectionResetError):
            if connection.sock is None:
                raise
            # The server may have said why it takes no more. If it has not, reading its answer raises again.
        response = connection.getresponse()
        return response.status, response.read()

    def _connection(self) -> http.client.HTTPConnection:
        connection = self._own.connection
        if connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            connection = self._own.connection = kind(self._host, self._port, timeout=self._timeout)
            self._connections.add(connection)
        return connection
