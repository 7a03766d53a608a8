"""DRPC requests over HTTP: `python -m tests.benchmarks.drpc --clients 1 --clients 32`.

The word lookup of the tutorial on a state in memory of `--vocab` words, asked for `--words` of them at a time. The server runs
beside its topology in a process of its own, the clients are threads of this one. Prints one JSON line for each number of
clients: `p50_ms`, `p99_ms`, `requests_s`; `in_process_ms` is the median of the same request without HTTP. Every answer is
compared with an independent count (`exact`).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.benchmarks._measuring import seconds_of, tell
from tests.harness.drpc_functions import words
from tests.harness.servers import ROOT
from trident import TridentTopology
from trident.drpc import DRPCClient, DRPCServer
from trident.operations import Count, Split


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    if options.serve:
        _serve(options)
        return 0
    command = [sys.executable, "-m", "tests.benchmarks.drpc", "--serve", "--vocab", str(options.vocab)]
    command += ["--words", str(options.words), "--requests", str(options.requests)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        told = json.loads(server.stdout.readline())
        for clients in options.clients or (1, 32):
            _ask(told["url"], 8, options, options.requests // 4)  # warm
            measured = _ask(told["url"], clients, options, options.requests)
            tell(clients=clients, **measured, in_process_ms=told["in_process_ms"])
        server.stdin.close()
    return 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, action="append", help="repeatable; 1 and 32 by default")
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--words", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=10_000)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _times(word: int) -> int:
    return 1 + word % 5


def _serve(options: argparse.Namespace) -> None:
    """Count, serve until standard input ends."""
    lines = [[" ".join([f"w{word}"] * _times(word))] for word in range(options.vocab)]
    topology = TridentTopology("drpc-benchmark")
    spout = FixedBatchSpout("line: string", 2000, *lines)
    each = topology.new_stream("lines", spout).each("line", Split(), "word").group_by("word")
    words(topology.new_drpc_stream("words"), each.persistent_aggregate(MemoryMapState(), Count(), "count"))
    with topology.start(engine="in_process") as running:
        running.process_all_available()
        asked = partial(running.drpc("words").execute, "w1 w2 w3 w4")
        times = [seconds_of(asked) for _ in range(min(options.requests, 500))]
        with DRPCServer(running.local_drpc(), port=0) as server:
            tell(url=server.url, in_process_ms=round(statistics.median(times) * 1000, 2))
            sys.stdin.read()


def _ask(url: str, clients: int, options: argparse.Namespace, requests: int) -> dict[str, Any]:
    times: list[list[float]] = [[] for _ in range(clients)]
    wrong: list[object] = []

    def ask(number: int) -> None:
        chosen = random.Random(number)
        for _ in range(requests // clients):
            asked = [chosen.randrange(options.vocab) for _ in range(options.words)]
            begin = time.perf_counter()
            answer = client.execute("words", " ".join(f"w{word}" for word in asked))
            times[number].append(time.perf_counter() - begin)
            if answer != [[sum(map(_times, asked))]]:
                wrong.append((asked, answer))

    with DRPCClient(url) as client:
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - begin
    every = sorted(one for own in times for one in own)
    return {
        "requests": len(every),
        "p50_ms": round(statistics.median(every) * 1000, 2),
        "p99_ms": round(every[int(len(every) * 0.99)] * 1000, 2),
        "requests_s": round(len(every) / seconds),
        "exact": not wrong and len(every) == requests // clients * clients,
    }


if __name__ == "__main__":
    raise SystemExit(main())
