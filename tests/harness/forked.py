"""Python programs, each in a process of its own, which is forked from one that has imported what most of them import.

These imports take most of the time of a short program. A program that lacks an import still fails as it does for its user:
a name is looked up in its own module.
"""

import contextlib
import gc
import importlib
import json
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from trident import Config, TridentTopology
from trident.run.running import start
from trident.spout import TransactionAttempt

ROOT = Path(__file__).parents[2]
_NEEDED = (
    "deltalake", "pandas", "pyarrow.compute", "pyarrow.dataset", "typer", "rich.console", "msgpack", "cloudpickle",
    "psycopg", "pyspark.sql", "redis", "spouts", "states.delta", "states.memory", "states.redis", "trident.cli.app",
    "trident.run.running", "trident.testing",
)  # fmt: skip


def run_python(
    *words: str, cwd: Path, variables: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run `python FILE …` or `python -m MODULE …` to its end."""
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "err")
        request = {"words": words, "cwd": str(cwd), "variables": dict(variables), "out": str(out), "err": str(err)}
        code = _ask(_server(_read_at_start(variables)), request, [*words], timeout_s)
        return subprocess.CompletedProcess([*words], code, out.read_text("utf-8"), err.read_text("utf-8"))


def _read_at_start(variables: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return what Python itself reads when it starts, which a fork cannot change."""
    return tuple(sorted((name, value) for name, value in variables.items() if name.startswith("PYTHON")))


@cache
def _server(read_at_start: tuple[tuple[str, str], ...]) -> str:
    """Start a server; it ends with this process, which holds the other end of its input."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**own, **dict(read_at_start), "OPENBLAS_NUM_THREADS": "1"},  # no threads in a process that forks
    )  # fmt: skip
    _servers.append(server)
    assert server.stdout is not None
    return server.stdout.readline().strip()


_servers: list[subprocess.Popen[str]] = []


def _ask(server: str, request: dict[str, Any], command: list[str], timeout_s: float) -> int:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect("\0" + server)
        link.sendall(json.dumps(request).encode() + b"\n")
        with link.makefile("r") as answers:
            pid = int(answers.readline())
            link.settimeout(timeout_s)
            try:
                return int(answers.readline())
            except TimeoutError:
                os.kill(pid, 9)
                raise subprocess.TimeoutExpired(command, timeout_s) from None


def _serve() -> dict[str, Any]:
    """Answer requests until the input ends; in a process that was forked for one, return it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0trident-forked-{os.getpid()}")
    listener.listen()
    sys.stdout.write(f"trident-forked-{os.getpid()}\n")
    sys.stdout.flush()
    if os.fork() == 0:  # ends the server, which waits for connections, with its input
        listener.close()
        sys.stdin.read()
        with contextlib.suppress(ProcessLookupError):
            os.kill(os.getppid(), 9)
        os._exit(0)
    while True:
        link, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _attend(link)
        link.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _attend(link: socket.socket) -> dict[str, Any]:
    """Fork the process of a program, and return its request there; here tell its process id, and how it ends."""
    with link.makefile("r") as requests:
        request: dict[str, Any] = json.loads(requests.readline())
    child = os.fork()
    if child == 0:
        link.close()
        return request
    link.sendall(f"{child}\n".encode())
    link.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())
    os._exit(0)


def _become(request: dict[str, Any]) -> None:
    """Be the process of a program as if it had been started so."""
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, request["out"], _NEW), (2, request["err"], _NEW)):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["variables"])
    sys.path[0] = request["cwd"]
    first, *rest = request["words"]
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


_NEW = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def command_of(function: Callable[..., object], *told: object) -> list[str]:
    """Return the words of a process of its own in which a function of a module is called with what it is told."""
    program = "import pickle, sys; call, told = pickle.loads(bytes.fromhex(sys.argv[1])); call(*told)"
    return [sys.executable, "-c", program, pickle.dumps((function, told)).hex()]


def exit_code_of(function: Callable[..., object], *told: object) -> int:
    return subprocess.run(command_of(function, *told), cwd=ROOT, check=False, timeout=200).returncode


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def live(
    declared: Callable[[Path], TridentTopology], folder: Path, point: str = "", txid: int = 0, **settings: Any
) -> None:
    """Run the topology of a folder, beside its log, until its sources are exhausted, or to death at a point of a batch."""

    def observe(reached: str, attempt: TransactionAttempt) -> None:
        if (reached, attempt.txid) == (point, txid):
            die()

    config = Config.of({"engine": "in_process", "log_dir": str(folder / "log"), "takeover": True, **settings})
    with start(declared(folder).graph(), config, None, observe) as running:
        running.process_all_available()


if __name__ == "__main__":
    for name in _NEEDED:
        with contextlib.suppress(Exception):  # one that cannot be imported is what the program is to meet
            importlib.import_module(name)
    gc.freeze()
    _become(_serve())
