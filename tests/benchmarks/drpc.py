"""DRPC requests over HTTP: `python -m tests.benchmarks.drpc --clients 1 32`.

The word lookup of the tutorial on a state in memory of `--vocab` words, asked for `--words` of them at a time. The server runs
beside its topology in a process of its own, the clients are threads of this one. Prints one JSON line for each number of
clients: `p50_ms`, `p99_ms`, `requests_s`; `in_process_ms` is the median of the same request without HTTP. Every answer is
compared with an independent count (`exact`).
"""

import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.benchmarks._measuring import Figures, run_rows, seconds_of, tell
from tests.harness.drpc_functions import words as asked_words
from tests.harness.servers import ROOT
from trident import TridentTopology
from trident.drpc import DRPCClient, DRPCServer
from trident.operations import Count, Split


def lookups(
    clients: tuple[int, ...] = (1, 32), requests: int = 4000, words: int = 4, vocab: int = 10_000
) -> Iterator[Figures]:
    """Requests of `--words` words out of `--vocab`, by so many clients at once."""
    program = "import sys; from tests.benchmarks.drpc import serve; serve(*map(int, sys.argv[1:]))"
    command = [sys.executable, "-c", program, str(vocab), str(min(requests, 500))]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        told = json.loads(server.stdout.readline())
        for number in clients:
            _ask(told["url"], 8, words, vocab, requests // 4)  # warm
            measured = _ask(told["url"], number, words, vocab, requests)
            yield {"clients": number, **measured, "in_process_ms": told["in_process_ms"]}
        server.stdin.close()


def _times(word: int) -> int:
    return 1 + word % 5


def serve(vocab: int, requests: int) -> None:
    """Count, serve until standard input ends."""
    lines = [[" ".join([f"w{word}"] * _times(word))] for word in range(vocab)]
    topology = TridentTopology("drpc-benchmark")
    spout = FixedBatchSpout("line: string", 2000, *lines)
    each = topology.new_stream("lines", spout).each("line", Split(), "word").group_by("word")
    asked_words(topology.new_drpc_stream("words"), each.persistent_aggregate(MemoryMapState(), Count(), "count"))
    with topology.start(engine="in_process") as running:
        running.process_all_available()
        asked = partial(running.drpc("words").execute, "w1 w2 w3 w4")
        times = [seconds_of(asked) for _ in range(requests)]
        with DRPCServer(running.local_drpc(), port=0) as server:
            tell(url=server.url, in_process_ms=round(statistics.median(times) * 1000, 2))
            sys.stdin.read()


def _ask(url: str, clients: int, words: int, vocab: int, requests: int) -> Figures:
    times: list[list[float]] = [[] for _ in range(clients)]
    wrong: list[object] = []

    def ask(number: int) -> None:
        chosen = random.Random(number)
        for _ in range(requests // clients):
            asked = [chosen.randrange(vocab) for _ in range(words)]
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
        "requests": len(every), "p50_ms": round(statistics.median(every) * 1000, 2),
        "p99_ms": round(every[int(len(every) * 0.99)] * 1000, 2), "requests_s": round(len(every) / seconds),
        "exact": not wrong and len(every) == requests // clients * clients,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_rows(__doc__, {"lookups": lookups}))
