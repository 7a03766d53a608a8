"""What the benchmarks share: rows with options, ways that take turns, functions in a process of their own, lines of JSON."""

import argparse
import inspect
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from tests.harness.servers import ROOT

T = TypeVar("T")
Figures = dict[str, Any]
Row = Callable[..., Figures | Iterator[Figures]]


def run_rows(doc: str | None, rows: Mapping[str, Row], argv: Sequence[str] | None = None) -> int:
    """Measure the rows that are named, by default all, and print what each gives; 1 if something is not `ok`.

    A row is a function, whose parameters are its options (a `Literal` names the choices); the first line of its docstring
    says what it is about.
    """
    listed = "\n".join(f"  {name:14}{(row.__doc__ or '').partition(chr(10))[0]}" for name, row in rows.items())
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=f"{doc}\nrows:\n{listed}", formatter_class=shown)
    parser.add_argument("row", nargs="*", metavar="ROW", help="default: all")
    taken = {name: {**inspect.signature(row, eval_str=True).parameters} for name, row in rows.items()}
    for option, given_as in {name: each for own in taken.values() for name, each in own.items()}.items():
        default = given_as.default
        one = default[0] if isinstance(default, tuple) else default
        how: Any = {"nargs": "*", "type": type(one)} if isinstance(default, tuple) else {"type": type(one)}
        how = {"action": argparse.BooleanOptionalAction} if isinstance(default, bool) else how
        how |= {"choices": get_args(given_as.annotation)} if get_origin(given_as.annotation) is Literal else {}
        parser.add_argument(
            f"--{option.replace('_', '-')}", default=argparse.SUPPRESS, help=f"default: {default}", **how
        )
    given = vars(parser.parse_args(argv))
    named = given.pop("row") or rows
    if unknown := [name for name in named if name not in rows]:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(rows)}")
    ok = True
    for name in named:
        figures = rows[name](**{option: value for option, value in given.items() if option in taken[name]})
        for each in [figures] if isinstance(figures, dict) else figures:
            tell(row=name, **each)
            ok = ok and each.get("ok", True)
    return 0 if ok else 1


@contextmanager
def work_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="trident-bench-") as folder:
        yield Path(folder)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


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


def ratios(found: Mapping[str, float], to: str, digits: int = 3) -> dict[str, float]:
    """Return each way as a multiple of one of them."""
    return {name: round(each / found[to], digits) for name, each in found.items()} if to in found else {}


def seconds_of(act: Callable[[], object]) -> float:
    """Return how long something takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def batches_of(
    topology: Any, must: Mapping[Any, Mapping[Any, Any]] | None = None, **settings: Any
) -> list[dict[str, Any]]:
    """Run a topology to the end of its sources, and return its batches; by state, `must` has values that are to be there."""
    with topology.start({"progress_kept": 1 << 20, **settings}) as running:
        running.process_all_available()
        for state, values in (must or {}).items():
            assert running.state(state).multi_get(list(values)) == list(values.values()), "it is not exact"
        batches: list[dict[str, Any]] = running.recent_progress
    return batches


def second_half(batches: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], float]:
    """Return the batches of the second half, and how long they took: what was before warms up."""
    half = len(batches) // 2
    return batches[half:], batches[-1]["recordedAt"] - batches[half - 1]["recordedAt"]


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
