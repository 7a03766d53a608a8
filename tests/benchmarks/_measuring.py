"""What the benchmarks share: ways that take turns, functions in a process of their own, figures as lines of JSON."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tests.harness.servers import ROOT

T = TypeVar("T")


def in_turns(ways: Mapping[str, Callable[[], T]], rounds: int, warm_up: int = 1) -> dict[str, list[T]]:
    """Return what each way gives, round by round without the first ones; what else the machine does hits all ways alike."""
    found: dict[str, list[T]] = {name: [] for name in ways}
    for at in range(warm_up + rounds):
        for name, way in ways.items():
            given = way()
            if at >= warm_up:
                found[name].append(given)
    return found


def medians(found: Mapping[str, Sequence[float]], digits: int | None = None) -> dict[str, float]:
    """Return the median of each way, rounded if that is asked for."""
    middle = {name: statistics.median(each) for name, each in found.items()}
    return middle if digits is None else {name: round(each, digits) for name, each in middle.items()}


def seconds_of(act: Callable[[], object]) -> float:
    """Return how long something takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def apart(function: Callable[..., T], **arguments: Any) -> T:
    """Call a function of a module in a process of its own, so that its memory can be told; it takes and gives what JSON has."""
    module = function.__globals__["__spec__"].name  # also where that is run as the program
    call = f"import {module} as m; print(json.dumps(m.{function.__name__}(**json.loads(sys.argv[1]))))"
    argv = [sys.executable, "-c", f"import json, sys; {call}", json.dumps(arguments)]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{function.__name__} of {arguments} failed:\n{ended.stderr}")
    given: T = json.loads(ended.stdout.splitlines()[-1])
    return given


def tell(**figures: object) -> None:
    """Print a line of JSON."""
    print(json.dumps(figures, ensure_ascii=False), flush=True)
