"""`trident drpc`: answers the DRPC functions of a topology over HTTP; and the same inside of `trident run`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trident.cli.console import say
from trident.config import Config
from trident.drpc import DRPCServer, LocalDRPC
from trident.drpc.server import DEFAULT_PORT
from trident.runtime.running import RunningTopology
from trident.topology import TridentTopology

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Serving:
    """How functions are served; see `DRPCServer`."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    token: str | None = None
    timeout_s: float = 30.0
    max_request_bytes: int = 1 << 20
    max_concurrency: int = 512
    max_connections: int = 1024

    @contextmanager
    def of(self, drpc: LocalDRPC) -> Iterator[DRPCServer]:
        """Serve while the context lasts, and say where."""
        with DRPCServer(
            drpc,
            self.host,
            self.port,
            token=self.token,
            timeout_s=self.timeout_s,
            max_request_bytes=self.max_request_bytes,
            max_concurrency=self.max_concurrency,
            max_connections=self.max_connections,
        ) as server:
            say(f"{drpc.name}: serving {', '.join(drpc.functions)} at {server.url}")
            yield server

    @contextmanager
    def beside(self, running: RunningTopology) -> Iterator[None]:
        """Serve the functions of a running topology while the context lasts."""
        with self.of(running.local_drpc()):
            yield


def serve(topology: TridentTopology, config: Config, serving: Serving, threads: int) -> int:
    """Serve a topology that another process runs, until SIGINT or SIGTERM; returns the exit code.

    The second signal ends the process at once.
    """
    with until_a_signal() as wait, LocalDRPC(topology, config, threads=threads) as drpc, serving.of(drpc):
        signum = wait()
        say("stopping after the requests in flight (a second signal ends it at once)")
    return 128 + signum


@contextmanager
def until_a_signal() -> Iterator[Callable[[], int]]:
    """Give a function that waits for the first signal. Signals are blocked before any thread starts, so no thread gets them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def wait() -> int:
        received = signal.sigwait(_SIGNALS)
        for signum in _SIGNALS:
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return int(received)

    try:
        yield wait
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
