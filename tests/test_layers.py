"""Who may import whom. The imports of every module are read, not run, and compared with one table."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.house_figures import ROOT, stores
from trident.extras import EXTRAS

PACKAGES = ("trident", "states", "spouts", "examples")
ALSO_OF_STORES = {"postgres": ("numpy",), "kafka": ("trident.tuples",), "delta": ("numpy", "pyspark", "py4j")}


@dataclass(frozen=True)
class Layer:
    """What the modules of one layer may import besides the standard library and each other.

    `deferred` may be imported only where the import runs late or never: in a function, or under TYPE_CHECKING.
    """

    modules: tuple[str, ...]
    may_import: tuple[str, ...] = ()
    deferred: tuple[str, ...] = ()
    each_other: bool = True


def _read_table(text: str) -> dict[str, tuple[str, ...]]:
    """Return the names behind each `=`; `.name` is of `trident`, and one in capitals stands for the names of its own line."""
    found: dict[str, tuple[str, ...]] = {}
    for line in text.replace("\n  ", " ").strip().splitlines():
        name, _, names = line.partition(" = ")
        found[name] = _names(names, found)
    return found


def _names(text: str, groups: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    listed = (groups.get(name, (f"trident{name}" if name.startswith(".") else name,)) for name in text.split())
    return tuple(name for names in listed for name in names)


# SPOUTS to HISTORY are the storeys of the room that runs topologies, from the bottom up; what is in none of them is on top.
GROUPS = _read_table("""
VALUES = .counts .roles .errors .extras .fields .channel .moments .naming .object_stores .redaction .retention
  .setting_types .servers.log_addresses .tuples .types
INTERFACES = VALUES .state .spout
GRAPH = .config .fluent .graph .operations .stream .topology
FOR_STORES = .roles .state .storekit .errors .extras .retention .fields .object_stores .redaction .servers .arrow .moments
  .alignment .types
ENGINES = pyspark py4j pyarrow pandas numpy
DRIVERS = redis hiredis pymemcache cassandra deltalake confluent_kafka psycopg kazoo obstore
RUNTIME = cloudpickle msgpack .notebook .observe .arrow .comparing .alignment .log .plan ENGINES INTERFACES GRAPH
SPOUTS = .run.batch_spouts .run.partitioned_spouts
COMMIT = .run.committer .run.committing .run.dead_letters .run.entries .run.replays
START = .run.accidents .run.engine_choice .run.moving .run.opened_topology .run.placements .run.recovery
LOOP = .run.batch .run.coordinator .run.execution .run.loop .run.progress .run.retrying .run.sources
HISTORY = .run.batch_replay .run.missing_batches .run.rewinding
""")

# Modules | what they may import | what they may import late. The first layer that has a module decides.
TABLE = """
.roles .errors
.counts .redaction .channel
.retention | .errors
# What notebooks show, as functions of values.
.notebook | .moments .naming .roles
.extras | .errors | pyspark
.servers.postgres_connection | psycopg .errors .redaction .servers.patience
.servers.plain_json | | starlette
.servers.server_thread | .errors .extras .roles | starlette uvicorn
.servers | .errors .extras .fields .redaction .setting_types | fastavro DRIVERS
.setting_types | .errors .redaction
.types | .moments | pyarrow
.fields .tuples | .errors .types
.state.number_columns .state.number_table | numpy pyarrow .state VALUES
.state | msgpack VALUES | numpy
.storekit | .state .servers VALUES | .arrow
.spout | VALUES | pyarrow
# The two doors from the surface to an engine: TridentTopology.start() and .foreach_batch() open them when they are called.
# The first opens the page besides, before the engine.
# A window that is given no state is kept in memory; what RE2, which Arrow brings, thinks of a regular expression is asked.
GRAPH | INTERFACES | .drawing .explain .observe .run.running .run.foreach_batch .web.running_pages states.memory
  datasketches pyarrow sqlglot
# Below what runs topologies: what a topology says of itself, as functions of values.
.observe | .servers INTERFACES | prometheus_client
.nodes | .servers VALUES | kazoo obstore psycopg
.log | msgpack .nodes .servers INTERFACES | psycopg
.plan | INTERFACES GRAPH
.explain .drawing | .plan .observe INTERFACES GRAPH | .steps.applying
.strict_columns | numpy pyarrow .naming .state .types
.arrow .alignment | pyarrow .errors .fields .moments .strict_columns .types
.comparing | numpy pyarrow .arrow VALUES
.drpc.server | starlette .drpc .errors .servers
# What runs topologies, from the bottom up: each room may import those that it names and none above it.
.steps | RUNTIME
.windows | .steps RUNTIME
# zmq: messages between the driver and workers that stay, of batches and of bolts.
.spark | pyspark py4j zmq cloudpickle .observe .plan .steps INTERFACES GRAPH | .data_source
.engine | .steps .windows .spark RUNTIME
# Where a log is may be written in the cluster's state.
.read | .steps RUNTIME | .cluster_state.cluster_address
SPOUTS | .steps .engine RUNTIME
# local_processes: files of dead letters appear whole and durable.
COMMIT | .steps .windows .engine .read .servers.local_processes RUNTIME
START | .steps .engine .read .spark COMMIT SPOUTS RUNTIME
LOOP | .steps .windows .engine .read COMMIT SPOUTS START RUNTIME
# Runs recorded batches again as the loop does.
HISTORY | .steps .windows .engine .read COMMIT START LOOP RUNTIME | states.memory
.drpc | .servers .steps .engine .read RUNTIME | .drpc.server
.run | .steps .engine .read .spark RUNTIME | .drawing .explain .drpc.local
.replay | .read HISTORY START RUNTIME
# What is asked of a topology that another process runs: on top of what runs topologies.
.targets | .topology VALUES
.data_source | .read .targets RUNTIME
.one_aggregate | .read .run.foreach_batch RUNTIME
# The page and the REST interface: what is served is asked of `ClusterPages`.
.web | starlette uvicorn httpx .servers .observe .storm .run.running .read INTERFACES GRAPH
# A tool for jobs without a topology: it knows nothing of Trident. `injected` runs in the job's own Python.
.crashtest.injected | | pyspark
.crashtest | .servers VALUES | deltalake psycopg pyarrow
.cluster_state | .config .log.log_reader .nodes .servers VALUES
# The upper storeys. None of them is imported from below, but where a door is named above.
.cluster | httpx psutil starlette cloudpickle .cluster_state .web .observe .nodes .servers .spark .log .plan .storm .read
  .run.running .run.placements .targets INTERFACES GRAPH
.cli | typer rich starlette .cluster .cluster_state .crashtest .web .drpc .observe .servers .spark .log .plan .explain
  .storm .reading .read .run .targets INTERFACES GRAPH | click .replay examples spouts states
# Spouts and bolts, from the bottom up: what is declared, what runs it, what tests it. None imports Trident's graph.
.storm.execution | cloudpickle .observe .storm INTERFACES
.storm.spark | zmq pyspark py4j cloudpickle .observe .storm .spark INTERFACES
# The bridge to Trident: a bolt that reads a state, when it is prepared. The door to Spark: TopologyBuilder.start().
.storm | .observe INTERFACES | .reading .read.state_reader .storm.spark.running_storm
# states.memory: a driver with in_memory=True.
.testing | pytest hypothesis pyarrow cloudpickle typer .arrow .comparing .log .drpc .plan .observe .run .read .steps .engine
  INTERFACES GRAPH | states.memory
trident | INTERFACES GRAPH | .run
# A reader of another topology: it may do what a reader does.
spouts.changes | spouts.rows .arrow .read .targets INTERFACES GRAPH
spouts | spouts.changes .servers .spout .storm.interfaces .storm.storm_tuples .arrow .alignment ENGINES confluent_kafka redis
  VALUES | deltalake
examples | trident states spouts pyspark typer rich confluent_kafka
"""


def _layers() -> Iterator[Layer]:
    for line in TABLE.replace("\n  ", " ").strip().splitlines():
        if not line.startswith("#"):
            modules, may_import, late, *_ = *(_names(part, GROUPS) for part in line.split("|")), (), ()
            yield Layer(modules, may_import, late)
    for store in stores():  # nothing else imports a store's driver, which its extra, of the same name, brings
        brought = EXTRAS[store].packages.values() if store in EXTRAS else ()
        own = (*(module.partition(".")[0] for module in brought), *ALSO_OF_STORES.get(store, ()))
        yield Layer((f"states.{store}",), (*GROUPS["FOR_STORES"], "pyarrow", *own))
    yield Layer(("states",), GROUPS["FOR_STORES"], each_other=False)


LAYERS = tuple(_layers())


@dataclass(frozen=True)
class Import:
    """One import: who imports what, where, and when: as the module is loaded (""), in a "function", or for "types" alone."""

    importer: str
    target: str
    place: str
    late: str


@cache
def imports_of(root: Path) -> tuple[Import, ...]:
    """Return all imports of all modules of `PACKAGES` below a folder."""
    return tuple(_read(root))


def _read(root: Path) -> Iterator[Import]:
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node, late in _walk(tree, ""):
                for target in _targets(node, name, is_package, root):
                    yield Import(name, target, f"{path.relative_to(root)}:{node.lineno}", late)


def _walk(node: ast.AST, late: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, late
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for inner in child.body:
                yield from _walk(ast.Module([inner], []), "types")
            for inner in child.orelse:
                yield from _walk(ast.Module([inner], []), late)
        elif not isinstance(child, ast.expr):
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _walk(child, late or ("function" if is_function else ""))


def _targets(node: ast.Import | ast.ImportFrom, importer: str, is_package: bool, root: Path) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = importer.split(".")
    if node.level:
        base = base[: len(base) - node.level + is_package]
    source = ".".join([*base, *([node.module] if node.module else [])] if node.level else [node.module or ""])
    for alias in node.names:
        if (source, alias.name) == ("trident", "__version__"):  # any module may say which version this is
            continue
        inner = f"{source}.{alias.name}"
        yield inner if _is_module(root, inner) else source


@cache
def _is_module(root: Path, name: str) -> bool:
    path = root.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


def _within(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def violations(root: Path) -> list[str]:
    """Return one line for each import that the table does not allow."""
    found = []
    for one in imports_of(root):
        if one.target.partition(".")[0] in sys.stdlib_module_names:
            continue
        layer = next((layer for layer in LAYERS if _within(one.importer, layer.modules)), None)
        if layer is None:
            found.append(f"{one.place}: {one.importer} is in no layer; add it to the table of tests/test_layers.py")
            continue
        if _within(one.target, layer.may_import) or (layer.each_other and _within(one.target, layer.modules)):
            continue
        if _within(one.target, layer.deferred):
            if not one.late:
                found.append(f"{one.place}: {one.importer} imports {one.target} at its top; import it where it is used")
            continue
        allowed = ", ".join(sorted({*layer.may_import, *layer.deferred})) or "nothing"
        found.append(f"{one.place}: {one.importer} imports {one.target}; its layer may import {allowed}")
    return found


def test_every_import_is_allowed_by_the_table() -> None:
    found = violations(ROOT)
    assert not found, "\n".join(["imports that break the layers:", *found])


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("path", "text", "part"),
    [
        ("trident/graph.py", "import pyspark", "trident.graph imports pyspark; its layer may import"),
        ("trident/state/maps.py", "from pyspark.sql import Row", "trident.state.maps imports pyspark.sql"),
        ("trident/state/maps.py", "def f():\n    import pyarrow", "trident.state.maps imports pyarrow"),
        ("trident/state/maps.py", "from ..run import running", "trident.state.maps imports trident.run"),
        ("trident/spout/interfaces.py", "import pyarrow", "imports pyarrow at its top"),
        ("trident/topology.py", "from trident.run.running import start", "trident.run.running at its top"),
        ("trident/testing/contracts.py", "import redis", "trident.testing.contracts imports redis"),
        ("trident/errors.py", "from trident import fields", "trident.errors imports trident"),
        ("states/redis/map.py", "from states.memory import MemoryMap", "states.redis.map imports states.memory"),
        ("states/redis/map.py", "from states.delta.layout import x", "states.redis.map imports states.delta.layout"),
        (
            "states/redis/map.py",
            "from trident.topology import TridentTopology",
            "states.redis.map imports trident.topology",
        ),
        ("spouts/files.py", "from trident.state import Txid", "spouts.files imports trident.state"),
        ("trident/novelty.py", "import numpy", "imports numpy"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, path: str, text: str, part: str) -> None:
    found = violations(_tree(tmp_path, {path: text}))
    assert len(found) == 1
    assert found[0].startswith(f"{path}:{len(text.splitlines())}: ")
    assert part in found[0]


def test_a_right_import_is_let_through(tmp_path: Path) -> None:
    files = {
        "trident/errors.py": "",
        "trident/state/__init__.py": "from .maps import OpaqueMap",
        "trident/state/maps.py": "import json\nfrom trident import errors\nfrom trident.errors import TridentError",
        "trident/spout/interfaces.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyarrow as pa",
        "trident/topology.py": "def start():\n    from trident.run.running import start",
        "states/delta/state.py": "import deltalake\nfrom states.delta.layout import x",
        "states/redis/map.py": "import redis\nfrom trident.state import OpaqueMap",
        "examples/count.py": "from trident import TridentTopology\nfrom states.redis import RedisState",
    }
    assert violations(_tree(tmp_path, files)) == []


def circles(root: Path) -> list[list[str]]:
    """Return the groups of modules that import each other in a circle, late imports and those for types included."""
    imports: dict[str, set[str]] = {}
    for one in imports_of(root):
        if one.target != one.importer:
            imports.setdefault(one.importer, set()).add(one.target)
    reach = {module: _reached(module, imports) for module in imports}
    found = {frozenset(other for other in reach[module] if module in reach.get(other, ())) for module in imports}
    return sorted(sorted(group) for group in found if len(group) > 1)


def _reached(module: str, imports: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    ahead = [module]
    while ahead:
        for target in imports.get(ahead.pop(), ()):
            if target not in reached:
                reached.add(target)
                ahead.append(target)
    return reached


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = circles(ROOT)
    assert not found, "\n".join(["circles of imports, late ones and those for types included:", *map(str, found)])


# Where users look for a name is not always where its work is done: these imports happen when the name is used.
DOORS = {
    ("trident.topology", "trident.run.running"),
    ("trident.topology", "trident.run.foreach_batch"),
    ("trident.topology", "trident.web.running_pages"),
    ("trident.spark", "trident.data_source"),
    ("trident.storm.state_lookup", "trident.reading"),
}
DECLARED = ("fluent", "stream", "targets", "topology")
ARROW = ("alignment", "arrow", "comparing", "strict_columns")
ASKED_FROM_OUTSIDE = ("data_source", "one_aggregate", "reading")
FLOORS = 13


def _room(module: str) -> str:
    """Return the package directly below `trident`; the modules there are five rooms."""
    top, _, rest = module.partition(".")
    name = rest.partition(".")[0]
    if top != "trident":
        return top
    rooms = {"graph": ("config", "graph"), "declared": DECLARED, "Arrow": ARROW, "asked": ASKED_FROM_OUTSIDE}
    rooms["explained"] = ("drawing", "explain")
    of_modules = next((room for room, names in rooms.items() if name in names), "values")
    return name if name and (ROOT / "trident" / name).is_dir() and name not in DECLARED else of_modules


def floors(imports: set[tuple[str, str]]) -> list[set[str]]:
    """Return the rooms from the ground up: each imports only what lies below it."""
    below: dict[str, set[str]] = {room: set() for pair in imports for room in pair}
    for importer, target in imports:
        below[importer].add(target)
    built: list[set[str]] = []
    while below:
        floor = {room for room, targets in below.items() if not targets & below.keys()}
        if not floor:
            raise AssertionError(f"rooms import each other in a circle: {sorted(below)}")
        built.append(floor)
        below = {room: targets for room, targets in below.items() if room not in floor}
    return built


def test_no_import_runs_up_from_one_room_to_another() -> None:
    at_work = {(each.importer, each.target) for each in imports_of(ROOT) if each.late != "types"} - DOORS
    ours = {(_room(one), _room(other)) for one, other in at_work if other.partition(".")[0] in PACKAGES}
    house = floors({(one, other) for one, other in ours if one != other})
    assert len(house) <= FLOORS, "\n".join(map(str, house))


@pytest.mark.parametrize(
    "back",
    [
        "from trident.stream import Stream",
        "def f():\n    from trident.stream import Stream",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from trident.stream import Stream",
    ],
)
def test_a_circle_is_found(tmp_path: Path, back: str) -> None:
    files = {
        "trident/stream.py": "from trident.fluent.base import B",
        "trident/fluent/base.py": "from trident.topology import T",
        "trident/topology.py": back,
        "trident/errors.py": "",
        "trident/fields.py": "from trident import errors\nfrom trident.errors import TridentError",
    }
    assert circles(_tree(tmp_path, files)) == [["trident.fluent.base", "trident.stream", "trident.topology"]]


@pytest.mark.slow
def test_importing_the_framework_loads_neither_an_engine_nor_a_driver() -> None:
    forbidden = ("pyspark", "py4j", "pandas", "starlette", "uvicorn", *GROUPS["DRIVERS"])
    script = (
        "import sys, trident, trident.state, trident.spout, trident.operations, trident.plan, trident.log, trident.drpc\n"
        f"print(sorted(name for name in {forbidden!r} if name in sys.modules))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
