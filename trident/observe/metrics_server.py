"""MetricsServer: answers a scrape over HTTP, in OpenMetrics or the older text format, as the request asks."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from trident.errors import ConfigError
from trident.extras import needs_package
from trident.serving.strangers import is_loopback, stranger

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["Collects", "MetricsServer"]


class Collects(Protocol):
    """Has metrics to serve."""

    def collect(self) -> Iterator[Metric]:
        """Iterate over the metrics, as `prometheus_client` asks for them."""


class MetricsServer:
    """Serves the metrics of one topology, and those of this process (memory, time of the processor, open files).

    Parameters
    ----------
    host, port
        Where to listen; port 0 takes a free one.

    Raises
    ------
    ConfigError
        The address cannot be listened on.
    EnvironmentProblem
        The package `prometheus-client` is missing.
    """

    def __init__(self, topology: str, metrics: Collects, host: str, port: int) -> None:
        self._server = _listening(_guarded(_app(metrics), is_loopback(host)), host, port)
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name=f"trident-{topology}-metrics", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The address of the metrics."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _app(metrics: Collects) -> Any:
    with needs_package("metrics_port", "metrics", "prometheus-client", "prometheus_client"):
        from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, make_wsgi_app
    registry = CollectorRegistry()  # one of its own: two topologies of a process have two ports
    for collector in (GCCollector, PlatformCollector, ProcessCollector):
        collector(registry=registry)
    registry.register(metrics)
    return make_wsgi_app(registry)


def _guarded(app: Any, loopback: bool) -> Any:
    """Return the application behind the guard of every server of this package."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        cause = stranger(environ.get("HTTP_HOST", ""), environ.get("HTTP_ORIGIN"), loopback)
        if cause is None:
            answered: Iterable[bytes] = app(environ, start)
            return answered
        start("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [cause.encode()]

    return answer


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = 10.0  # seconds within which a client sends its request

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape every few seconds is no news."""


def _listening(app: Any, host: str, port: int) -> WSGIServer:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        kind = type("_Server", (_Server,), {"address_family": family})
        return make_server(host, port, app, kind, _Handler)
    except OSError as error:
        hint = "; another program or topology has the port, choose another one, or 0 for a free one"
        in_use = hint if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(f"metrics cannot be served at {host}:{port}: {error.strerror or error}{in_use}") from error
