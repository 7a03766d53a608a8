"""Has a function answer in a new process."""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from trident.testing.checks.contract import broken

_PROCESS_TIMEOUT_S = 60.0


def answer_in_another_process(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a module in a new process; `Violation` with `what` and the error if it raises there."""
    pickled = base64.b64encode(cloudpickle.dumps((function, arguments)))
    script = f"from {__name__} import answer_in_this_process as answer; answer()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=pickled,
        capture_output=True,
        timeout=_PROCESS_TIMEOUT_S,
        env=environment,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        broken(f"{what}: {lines[-1] if lines else done.returncode}")
    return pickle.loads(base64.b64decode(done.stdout.splitlines()[-1]))  # made by this very module


def answer_in_this_process() -> None:
    """What the other process runs."""
    function, arguments = pickle.loads(base64.b64decode(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(b"\n" + base64.b64encode(cloudpickle.dumps(function(*arguments))) + b"\n")
    sys.stdout.flush()
    os._exit(0)  # a client's own threads may end badly with the interpreter; the answer is given
