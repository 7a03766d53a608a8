"""`trident drpc`: answers the DRPC functions of a topology over HTTP; and the same inside of `trident run`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trident.cli.arguments import Conf, Debug, LogDir, SubmittedName, Target, Token, port
from trident.cli.console import reporting, say, until_a_signal

if TYPE_CHECKING:
    from trident.drpc import DRPCServer, LocalDRPC


def drpc_command(
    target: Target,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to answer at.")] = "127.0.0.1",
    port: Annotated[int, port("0 takes a free port.")] = 3774,
    token: Token = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.001, help="How long a request may take.")] = 30.0,
    max_request_bytes: Annotated[int, typer.Option(metavar="N", min=1, help="The longest request.")] = 1 << 20,
    max_concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many requests may be in flight; more are refused.")
    ] = 512,
    max_connections: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many connections may be open; with more, requests are refused.")
    ] = 1024,
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="How many threads answer each function.")] = 1,
    conf: Conf = None,
    log_dir: LogDir = None,
    name: SubmittedName = None,
    debug: Debug = False,
) -> None:
    """Answer the DRPC functions of a topology over HTTP, beside the process that runs it, without Spark.

    States are read through the topology's log, at the last committed batch. Ctrl-C and SIGTERM end it once the requests
    in flight are answered; a second signal ends it at once.

    Exit codes: 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 ended by SIGTERM.
    """
    from trident.cli.target import load_topology, settings

    with reporting(debug):
        from trident.drpc import LocalDRPC

        config, topology = settings(conf or [], {"log_dir": log_dir}), load_topology(target, name)
        limits = {"max_request_bytes": max_request_bytes, "max_concurrency": max_concurrency}
        more = {"token": token, "timeout_s": timeout, "max_connections": max_connections, **limits}
        with (
            until_a_signal() as wait,
            LocalDRPC(topology, config, threads=threads) as drpc,
            serving(drpc, host, port, **more),
        ):
            signum = wait()
            say("stopping after the requests in flight (a second signal ends it at once)")
    raise typer.Exit(128 + signum)


@contextmanager
def serving(drpc: LocalDRPC, host: str, port: int, **more: Any) -> Iterator[DRPCServer]:
    """Serve functions while the context lasts, and say where; `more` as for `DRPCServer`."""
    from trident.drpc import DRPCServer

    with DRPCServer(drpc, host, port, **more) as server:
        say(f"{drpc.name}: serving {', '.join(drpc.functions)} at {server.url}")
        yield server
