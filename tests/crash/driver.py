"""Drivers in processes of their own, which may kill themselves, and the server that forks them.

An interpreter that has everything imported already starts one in milliseconds. The server answers two requests, a line of
JSON each: `{"start": life}` with the process id, `{"wait": pid}` with what `waitpid` says once that process has ended or
stopped. A life may say `kill_after_s`.
"""

import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.case import SEGMENT_BYTES, Case, Pairing
from tests.crash.fuse import Arm, Fuse
from tests.crash.fused_wrappers import crashing_log
from tests.harness.forked import die
from trident.run.running import start
from trident.spout.interfaces import TransactionAttempt

OBSERVED = {"defined": "P1", "committed": "P10", "recorded": "P12"}
TIME_LIMIT_S = 60


def observer(fuse: Fuse) -> Any:
    """Return an observer of a topology that reaches the points which lie between two steps of the driver loop."""

    def observe(step: str, attempt: TransactionAttempt) -> None:
        if step in OBSERVED:
            fuse.reach(OBSERVED[step], attempt.txid)

    return observe


def live(life: dict[str, Any]) -> str:
    """Run a driver until its source is exhausted; return the name of the error that ended it, or `done`."""
    case = Case(**{**life["case"], "pairing": Pairing(**life["case"]["pairing"])})
    directory, fuse = Path(life["directory"]), Fuse([Arm(**arm) for arm in life["arms"]])
    graph = case.topology(directory, life["number"], fuse).graph()
    config = case.config(directory, takeover=life["takeover"])
    try:
        with crashing_log(fuse, SEGMENT_BYTES), start(graph, config, None, observer(fuse)) as running:
            running.process_all_available()
    except Exception as error:  # noqa: BLE001  told to whoever started this process
        (directory / f"life-{life['number']}.txt").write_text(traceback.format_exc())
        return type(error).__name__
    return "done"


def main(life: dict[str, Any]) -> None:
    said = live(life)
    (Path(life["directory"]) / f"life-{life['number']}.end").write_text(said)


def _fork(life: dict[str, Any], run: Callable[[dict[str, Any]], None]) -> int:
    child = os.fork()
    if child == 0:
        signal.alarm(TIME_LIMIT_S)
        if "kill_after_s" in life:
            threading.Timer(life["kill_after_s"], die).start()
        try:
            run(life)
        except BaseException:  # noqa: BLE001  the child must not return into the server
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def _wait(child: int) -> dict[str, int]:
    _, status = os.waitpid(child, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return {"stopped": os.WSTOPSIG(status)}
    return {"ended": os.waitstatus_to_exitcode(status)}


def serve(run: Callable[[dict[str, Any]], None]) -> None:
    """Answer requests until there are no more; each driver is a `run` of what it is told."""
    for module in ("deltalake.exceptions", "pandas", "pyarrow.dataset"):  # what a driver would import when it needs it
        importlib.import_module(module)
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"pid": _fork(request["start"], run)} if "start" in request else _wait(request["wait"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
