"""`trident get`: a state read from another process, at a committed batch, without Spark."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from io import StringIO
from pathlib import Path

import pytest
import typer
from rich.console import Console

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from tests.harness.commands import COUNTS, environment, last_txid, started, trident, until, write_module
from trident import Config
from trident.cli.get import KeyListing, LookupAnswer, read
from trident.cli.target import settings
from trident.errors import ForeignLogError, LogError, TopologyError, UnsupportedOperation
from trident.log.file_log import FileLog
from trident.operations import Avg, Count, Sum
from trident.servers.plain_json import plain
from trident.topology import TridentTopology

pytestmark = pytest.mark.slow

IN_PROCESS = ("--conf", "engine=in_process")
Reading = Callable[[KeyListing], LookupAnswer]
WORDS = ("the", "cow", "the", "man", "the", "moon", "the", "the", "the")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_module(tmp_path, "counts", COUNTS)
    return tmp_path


def goes_on_after(log_dir: Path, txid: int) -> None:
    until(lambda: last_txid(log_dir) > txid, "the topology goes on")


@pytest.mark.long
def test_all_keys_are_read_at_one_committed_batch_while_the_topology_runs(folder: Path) -> None:
    log_dir = folder / "trident-log" / "counts"
    with started("run", "counts:endless", *IN_PROCESS, cwd=folder):
        until(lambda: last_txid(log_dir) >= 1, "a first batch is committed")
        for _ in range(2):
            before = last_txid(log_dir)
            done = trident("get", "counts:endless", "count", "the", "cow", "--json", cwd=folder)
            answer = json.loads(done.stdout)
            assert answer["txid"] >= before
            # Rows repeat after three batches; "cow" is in the first two of them.
            whole, rest = divmod(answer["txid"], 3)
            assert answer["values"] == [
                {"key": ["the"], "value": 2 * answer["txid"]},
                {"key": ["cow"], "value": 2 * whole + min(rest, 2)},
            ]
            goes_on_after(log_dir, answer["txid"])


def test_a_table_shows_values_and_what_is_absent(folder: Path) -> None:
    trident("run", "counts:topology", "--once", *IN_PROCESS, cwd=folder)
    done = trident("get", "counts:topology", "count", "the", "sow", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    cells = [line.split() for line in done.stdout.splitlines()][1:-1]
    assert cells == [["the", "6"], ["sow", "–"]]
    assert "counts, state count, after batch 3" in done.stdout


EVIL = "\x1b[2Jx\x9b31m\r\u202e\x07\x7f\ny"
ATTACK = f"""
    import logging
    from spouts import FixedBatchSpout
    from states.delta import DeltaState
    from trident import TridentTopology
    from trident.operations import Last

    def seen(word, fails):
        logging.getLogger("attack").warning(word)
        if fails:
            raise ValueError(word)
        return True

    def made(fails):
        topology = TridentTopology("failing" if fails else "attack")
        words = topology.new_stream("words", FixedBatchSpout("word: string, other: string", 1, [{EVIL!r}, {EVIL!r}]))
        words = words.filter("word", lambda word: seen(word, fails))
        words.group_by("word").persistent_aggregate(DeltaState.opaque(topology.name + "-table"), "other", Last(), "last")
        return topology

    topology, failing = made(False), made(True)
"""


def test_values_cannot_steer_a_terminal(tmp_path: Path) -> None:
    write_module(tmp_path, "attack", ATTACK)
    failed = trident("run", "attack:failing", "--once", *IN_PROCESS, cwd=tmp_path)
    ran = trident("run", "attack:topology", "--once", *IN_PROCESS, cwd=tmp_path)
    table = trident("get", "attack:topology", "last", "--all", cwd=tmp_path)
    as_json = trident("get", "attack:topology", "last", "--all", "--json", cwd=tmp_path)
    for done in (failed, ran, table, as_json):
        told = done.stdout + done.stderr
        assert "\\u001b[2Jx\\u009b31m\\u000d\\u202e\\u0007\\u007f" in told.replace("\\r", "\\u000d")
        assert not set(EVIL) & set(told) - set("[2Jx31m\ny")
    assert json.loads(as_json.stdout)["values"] == [{"key": [EVIL], "value": EVIL}]
    assert len([line for line in table.stdout.splitlines() if "31m" in line]) == 1


@pytest.mark.long
def test_a_single_value_is_read_without_a_key(folder: Path) -> None:
    trident("run", "counts:topology", "--once", *IN_PROCESS, cwd=folder)
    done = trident("get", "counts:topology", "total", "--json", cwd=folder)
    assert json.loads(done.stdout) == {"topology": "counts", "state": "total", "txid": 3, "value": 12}


def test_neither_spark_nor_java_is_started(folder: Path) -> None:
    trident("run", "counts:topology", "--once", *IN_PROCESS, cwd=folder)
    script = (
        "import sys; from trident.cli import main\n"
        "sys.argv = ['trident', 'get', 'counts:topology', 'count', 'the', '--json']\n"
        "try: main()\nfinally: print([name for name in ('pyspark', 'py4j') if name in sys.modules])"
    )
    command = [sys.executable, "-c", script]
    changes = environment(JAVA_HOME="nowhere")
    done = subprocess.run(command, cwd=folder, env=changes, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "[]"
    assert '"value": 6' in done.stdout


@pytest.mark.parametrize(
    ("listing", "found", "count", "more"),
    [
        (KeyListing(), {"cow": 1, "man": 1, "moon": 1, "the": 6}, 4, False),
        (KeyListing(None, 3), {"cow": 1, "man": 1, "moon": 1, "the": 6}, 3, True),
        (KeyListing("m"), {"man": 1, "moon": 1}, 2, False),
        (KeyListing("m", 2), {"man": 1, "moon": 1}, 2, False),
        (KeyListing("x", 2), {}, 0, False),
    ],
)
def test_keys_are_listed_and_a_listing_that_ends_at_its_limit_says_so(
    listing: KeyListing, found: dict[str, int], count: int, more: bool, listed: Reading
) -> None:
    answer = listed(listing)
    assert answer.keys is not None
    listed_now = dict(zip([word for (word,) in answer.keys], answer.values, strict=True))
    assert (len(listed_now), listed_now.items() <= found.items()) == (count, True)
    assert (answer.more, answer.plain()["more"]) == (more, more)


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Reading:
    folder = tmp_path_factory.mktemp("listed")
    topology = TridentTopology("listed")
    lines = FixedBatchSpout("word: string", 3, *[[word] for word in WORDS])
    counted = topology.new_stream("lines", lines).group_by("word")
    counted.persistent_aggregate(DeltaState.opaque(str(folder / "table")), Count(), "count")
    config = Config.of(log_dir=str(folder / "log"), engine="in_process")
    with topology.start(config) as running:
        running.process_all_available()
    return lambda listing: read(topology, config, "count", [], listing)


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LookupAnswer]:
    """Reads a state of several aggregates, whose keys have two fields."""
    folder = tmp_path_factory.mktemp("sales")
    topology = TridentTopology("shops")
    rows = [["a", 1, 5], ["a", 2, 1200], ["b", 1, 7], ["a", 2, 800]]
    spout = FixedBatchSpout("shop: string, day: int, euros: bigint", 9, *rows)
    totals = {"revenue": Sum("euros"), "average": Avg("euros")}
    shops = topology.new_stream("orders", spout).group_by("shop", "day")
    shops.persistent_aggregate(DeltaState.opaque(str(folder / "sales")), totals, "sales")
    config = Config.of(log_dir=str(folder / "log"), engine="in_process")
    with topology.start(config) as running:
        running.process_all_available()
    return lambda *keys, **listing: read(topology, config, "sales", keys, KeyListing(**listing) if listing else None)


def _cells(answer: LookupAnswer) -> list[list[str]]:
    console = Console(file=StringIO(), width=200)
    answer.show(console)
    return [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_several_aggregates_are_a_column_each_without_what_they_remember(sales: Callable[..., LookupAnswer]) -> None:
    answer = sales('["a", 2]', '["c", 1000]')
    assert _cells(answer) == [
        ["shop", "day", "revenue", "average"],
        ["a", "2", "2,000", "1000.0"],
        ["c", "1000", "–", "–"],  # as a key is named, without marks
    ]
    assert answer.plain()["values"] == [
        {"key": ["a", 2], "value": {"revenue": 2000, "average": 1000.0}},
        {"key": ["c", 1000], "value": None},
    ]


def test_a_key_is_shown_as_it_is_read() -> None:
    topology = TridentTopology("years")
    days = topology.new_stream("days", FixedBatchSpout("year: int", 1, [2026]))
    days.group_by("year").persistent_aggregate(MemoryMapState.opaque(), Count(), "n")
    assert _cells(LookupAnswer("years", topology.graph().state("n"), 1, [(2026,)], [2026]))[1] == ["2026", "2,026"]


def test_the_first_field_of_a_key_reads_all_that_begin_with_it(sales: Callable[..., LookupAnswer]) -> None:
    answer = sales("a", "c", '["b", 1]')
    assert sorted(_cells(answer)[1:]) == [
        ["a", "1", "5", "5.0"],
        ["a", "2", "2,000", "1000.0"],
        ["b", "1", "7", "7.0"],
        ["c", "–", "–", "–"],
    ]
    assert {"key": ["c"], "value": None} in answer.plain()["values"]


def test_the_keys_with_the_greatest_values_are_listed_in_order(sales: Callable[..., LookupAnswer]) -> None:
    assert [row[:3] for row in _cells(sales(top=2, by="revenue"))[1:]] == [["a", "2", "2,000"], ["b", "1", "7"]]
    assert sales(top=9, by="average", prefix="b").keys == [("b", 1)]


@pytest.mark.long
def test_a_listing_is_printed_and_a_store_that_is_gone_is_an_error(folder: Path) -> None:
    trident("run", "counts:topology", "--once", *IN_PROCESS, cwd=folder)
    done = trident("get", "counts:topology", "count", "--prefix", "c", "--limit", "1", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\ncow" in done.stdout
    (folder / "table").rename(folder / "elsewhere")
    gone = trident("get", "counts:topology", "count", "the", "--json", cwd=folder)
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "the store has no commit at all: it was emptied or moved away" in gone.stderr


def test_a_value_of_any_kind_is_shown_as_json() -> None:
    value = {"a": (1, Decimal("1.5")), 2: [b"x\xff", None, date(2026, 1, 1)]}
    assert plain(value) == {"a": [1, "1.5"], "2": ["x\\xff", None, "2026-01-01"]}
    odd = [float("nan"), {"a": float("-inf")}]
    assert json.dumps(plain(odd), allow_nan=False) == '["nan", {"a": "-inf"}]'


def _topology(memory: bool = False) -> TridentTopology:
    topology = TridentTopology("one")
    stream = topology.new_stream("lines", FixedBatchSpout("word: string", 1, ["a"]))
    spec = MemoryMapState() if memory else DeltaState.opaque("nowhere")
    stream.group_by("word").persistent_aggregate(spec, Count(), "count")
    stream.persistent_aggregate(MemoryMapState() if memory else DeltaState.opaque("nowhere2"), Count(), "total")
    return topology


def test_an_unknown_state_is_named_with_those_there_are() -> None:
    with pytest.raises(TopologyError, match=r"no state 'cuont'; it has \['count', 'total'\]"):
        read(_topology(), settings([], {}), "cuont", ["a"])


def test_a_state_in_memory_cannot_be_read() -> None:
    with pytest.raises(UnsupportedOperation, match="is in the memory of the process that runs 'one'"):
        read(_topology(memory=True), settings([], {}), "count", ["a"])


@pytest.mark.parametrize(
    ("state", "keys", "listing", "said"),
    [
        ("count", [], None, r"is a map with the key \(word\); name the keys"),
        ("total", ["a"], None, "holds a single value; name no key"),
        ("count", ["a"], KeyListing(), "name keys, or list them with --all"),
        ("total", [], KeyListing(), "holds a single value; name no key"),
    ],
)
def test_keys_and_lists_must_fit_the_state(state: str, keys: list[str], listing: KeyListing | None, said: str) -> None:
    with pytest.raises(typer.BadParameter, match=said):
        read(_topology(), settings([], {}), state, keys, listing)


@pytest.mark.parametrize(("keys", "listing"), [(["x"], None), ([], KeyListing(prefix="x"))])
def test_a_key_that_cannot_be_one_is_wrong_usage(keys: list[str], listing: KeyListing | None, tmp_path: Path) -> None:
    topology = TridentTopology("numbers")
    stream = topology.new_stream("s", FixedBatchSpout("n: int", 1, [1]))
    stream.group_by("n").persistent_aggregate(DeltaState.opaque(str(tmp_path / "table")), Count(), "count")
    FileLog.open(tmp_path / "log", "numbers").close()
    config = settings([], {"log_dir": str(tmp_path / "log")})
    with pytest.raises(typer.BadParameter, match="of type int|with n, of type int"):
        read(topology, config, "count", keys, listing)


@pytest.mark.parametrize("listing", [None, KeyListing()])
def test_the_contents_of_a_window_are_no_table(listing: KeyListing | None) -> None:
    topology = TridentTopology("windows")
    stream = topology.new_stream("s", FixedBatchSpout("word", 1, ("a",)))
    stream.group_by("word").tumbling_window(2, MemoryMapState.opaque(), Count(), "n", state_name="w")
    with pytest.raises(typer.BadParameter, match="state 'w' keeps the tuples of open windows"):
        read(topology, settings([], {}), "w", [], listing)


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="no transaction log in .*nothing, .*--log-dir"):
        read(_topology(), settings([], {"log_dir": str(tmp_path / "nothing")}), "count", ["a"])


def test_the_log_of_another_topology_is_refused(tmp_path: Path) -> None:
    FileLog.open(tmp_path / "log", "another").close()
    with pytest.raises(ForeignLogError, match="belongs to topology 'another', not to topology 'one'"):
        read(_topology(), settings([], {"log_dir": str(tmp_path / "log")}), "count", ["a"])


def test_a_state_that_was_never_written_has_no_values(tmp_path: Path) -> None:
    FileLog.open(tmp_path / "log", "one").close()
    answer = read(_topology(), settings([], {"log_dir": str(tmp_path / "log")}), "count", ["a"])
    assert (answer.txid, answer.values) == (0, [None])
