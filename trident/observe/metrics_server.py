"""MetricsServer: answers a scrape over HTTP, in OpenMetrics or the older text format, as the request asks."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from trident.errors import ConfigError
from trident.extras import needs_package
from trident.http.strangers import is_loopback, stranger

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_CLIENT_S = 10.0  # within which a client sends its request


class Collects(Protocol):
    """Has metrics to serve."""

    def collect(self) -> Iterator[Metric]:
        """Iterate over the metrics, as `prometheus_client` asks for them."""


class MetricsServer:
    """Serves the metrics of one topology, and of this process (memory, processor time, open files).

    `host`, `port`: where to listen; port 0 takes a free one.
    Raises `ConfigError`: the address cannot be listened on.
    Raises `EnvironmentProblem`: the package `prometheus-client` is missing.
    """

    def __init__(self, topology: str, metrics: Collects, host: str, port: int) -> None:
        with needs_package("metrics_port", "metrics", "prometheus-client", "prometheus_client"):
            import prometheus_client as prometheus
        registry = prometheus.CollectorRegistry()  # one of its own: two topologies of a process have two ports
        try:
            self._server, self._thread = prometheus.start_http_server(port, host, registry)
        except OSError as error:
            hint = "; another program or topology has the port, choose another one, or 0 for a free one"
            in_use = hint if error.errno == errno.EADDRINUSE else ""
            raise ConfigError(
                f"metrics cannot be served at {host}:{port}: {error.strerror or error}{in_use}"
            ) from error
        self._thread.name = f"trident-{topology}-metrics"
        self._server.RequestHandlerClass = _patient(self._server.RequestHandlerClass)
        self._server.set_app(_guarded(self._server.get_app(), is_loopback(host)))
        for collector in (prometheus.GCCollector, prometheus.PlatformCollector, prometheus.ProcessCollector):
            collector(registry=registry)
        registry.register(metrics)  # after the guard, so that nothing is served without it
        self.host, self.port = host, int(self._server.server_address[1])

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


def _patient(handler: Any) -> Any:
    """Return a handler that waits some seconds for a request, and says nothing of a client that sends half of one."""

    class Handler(handler):  # type: ignore[misc]
        timeout = _CLIENT_S

        def handle(self) -> None:
            with suppress(OSError):
                super().handle()

        def finish(self) -> None:
            with suppress(OSError):
                super().finish()

    return Handler


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
