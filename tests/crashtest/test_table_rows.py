"""Tables of each kind are read as rows, and compared; which points of which batches are chosen; the copy for each run."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.harness.servers import Server
from trident.crashtest import USUAL, Comparison, KillMoment, RowDifference, table_named
from trident.crashtest.job_run import FunctionCall, KillPoint, choose, copy_folder
from trident.errors import ConfigError, TridentError

ROWS = [{"word": "cow\u2028", "n": 1}, {"word": "moon", "n": 2}]


def write_parquet(folder: Path) -> None:
    for number, row in enumerate(ROWS):
        pq.write_table(pa.Table.from_pylist([row]), folder / f"part-{number}.parquet")
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / "part-2.parquet").write_text("half of a file")
    (folder / "_SUCCESS").touch()
    (folder / ".part-0.parquet.crc").touch()


def write_delta(folder: Path) -> None:
    write_deltalake(folder, pa.Table.from_pylist([{"word": "old", "n": 9}]))
    write_deltalake(folder, pa.Table.from_pylist(ROWS), mode="overwrite")


def write_by_a_sink(folder: Path) -> None:
    """Write as Spark's file sink does: its log names the files, and that of a killed task is in none of its lines."""
    (folder / "day one").mkdir()
    names = ["day one/part-0.json", "part-1.json", "part-of-a-killed-task.json"]
    for name, row in zip(names, [*ROWS, {"word": "lost", "n": 3}], strict=True):
        (folder / name).write_text(json.dumps(row))
    (folder / "_spark_metadata").mkdir()
    for log, name in {"9.compact": names[0], "10": names[1], ".11.tmp": names[2]}.items():
        line = json.dumps({"path": (folder / name).as_uri(), "action": "add"})
        (folder / "_spark_metadata" / log).write_text(f"v1\n{line}")


@pytest.mark.parametrize("write", [write_parquet, write_delta, write_by_a_sink])
def test_a_folder_has_the_rows_of_its_files(write: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    write(tmp_path / "words")
    assert sorted(table_named("words").read(tmp_path), key=lambda row: row["n"]) == ROWS


LINES = [json.dumps(row, ensure_ascii=False) for row in ROWS]
FILES: dict[str, tuple[str, dict[str, str], list[Any]]] = {
    "json lines": ("words", {"words/part-0.json": "\n".join(LINES), "words/part-1.json": ""}, ROWS),
    "jsonl": ("words", {f"words/part-{number}.jsonl": f"{line}\n" for number, line in enumerate(LINES)}, ROWS),
    "partition": ("words", {"words/day=mon/part.json": '{"word": "cow"}'}, [{"day": "mon", "word": "cow"}]),
    "csv": ("one.csv", {"one.csv": "word,n\ncow,1\n"}, [{"_c0": "word", "_c1": "n"}, {"_c0": "cow", "_c1": "1"}]),
    "csv with a header": ("one.csv?header=true", {"one.csv": "word,n\ncow,1\n"}, [{"word": "cow", "n": "1"}]),
    "a list": ("all.json", {"all.json": json.dumps(ROWS, indent=1)}, ROWS),
    "a list of lists": ("all.json", {"all.json": '[["cow", 1], 7]'}, [{"_c0": "cow", "_c1": 1}, {"_c0": 7}]),
    "one value": ("total.json", {"total.json": "9"}, [{"_c0": 9}]),
    "an object": (
        "totals.json", {"totals.json": '{"cow": 1, "moon": {"n": 2}}'},
        [{"key": "cow", "value": 1}, {"key": "moon", "value": {"n": 2}}],
    ),
    "nothing": ("words", {}, []),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_text_files_have_rows_by_their_kind(name: str, tmp_path: Path) -> None:
    table, files, rows = FILES[name]
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert table_named(table).read(tmp_path) == rows


def test_a_line_of_csv_with_more_values_than_the_header_is_another_row(tmp_path: Path) -> None:
    (tmp_path / "cut.csv").write_text("word,n\ncow,moon,2\n")  # `cow,` was cut by a kill
    rows = table_named("cut.csv?header=true").read(tmp_path)
    (cow,) = Comparison(["word"]).differences([{"word": "cow", "n": "1"}], rows)
    assert (cow.expected, cow.found) == ("n=1", 'beyond the header=["2"], n=moon')


def test_a_table_of_sqlite_and_a_query(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as db, db:
        db.execute("CREATE TABLE counts (word TEXT, n INTEGER)")
        db.executemany("INSERT INTO counts VALUES (:word, :n)", ROWS)
    assert table_named("sqlite:///a.db?table=counts").read(tmp_path) == ROWS
    assert table_named("sqlite:///a.db?query=SELECT sum(n) AS s FROM counts").read(tmp_path) == [{"s": 3}]
    with pytest.raises(TridentError, match=r"SELEC in a.db cannot be read: OperationalError"):
        table_named("sqlite:///a.db?query=SELEC").read(tmp_path)


@pytest.mark.slow
def test_a_function_is_called_in_the_copy(tmp_path: Path) -> None:
    code = "import pathlib\ndef rows():\n    print('noise')\n    return [(pathlib.Path('n').read_text(), None)]\n"
    (tmp_path / "shop.py").write_text(code)
    (tmp_path / "n").write_text("7")
    assert table_named("shop:rows").read(tmp_path) == [{"_c0": "7", "_c1": None}]
    with pytest.raises(
        TridentError, match=r"shop:cols\(\) gave no rows for the table: AttributeError: .* no attribute 'cols'"
    ):
        table_named("shop:cols").read(tmp_path)


def test_a_table_of_postgres_and_a_query(postgres_server: Server, tmp_path: Path) -> None:
    url = f"postgresql://trident@{postgres_server.address}/postgres"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute("DROP TABLE IF EXISTS crashtest_counts")
        server.execute("CREATE TABLE crashtest_counts (word text, n int)")
        server.cursor().executemany("INSERT INTO crashtest_counts VALUES (%(word)s, %(n)s)", ROWS)
    table = table_named(f"{url}?table=public.crashtest_counts")
    assert table.read(tmp_path) == ROWS
    assert table.database == "postgres"
    assert table_named(f"{url}?query=SELECT sum(n) FROM crashtest_counts").read(tmp_path) == [{"sum": 3}]
    assert table_named(f"{url}?table=crashtest_nothing").read(tmp_path) == []
    with pytest.raises(TridentError, match="cannot be read: column"):
        table_named(f"{url}?query=SELECT nothing FROM crashtest_counts").read(tmp_path)


@pytest.mark.parametrize("name", ["totals.json", "sqlite:///a.db?table=counts"])
def test_a_table_that_is_not_there_yet_has_no_rows(name: str, tmp_path: Path) -> None:
    assert table_named(name).read(tmp_path) == []
    sqlite3.connect(tmp_path / "a.db").close()
    assert table_named(name).read(tmp_path) == []


def test_a_table_of_delta_whose_first_commit_was_not_made_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "words" / "_delta_log").mkdir(parents=True)
    assert table_named("words").read(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [("part.orc", "O"), ("part.json", "{"), ("part.parquet", "P"), (f"_delta_log/{0:020}.json", '{"protocol":')],
)
def test_a_file_that_cannot_be_read_is_told_by_name(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "words" / name).parent.mkdir(parents=True)
    (tmp_path / "words" / name).write_text(text)
    with pytest.raises(TridentError, match="table words "):
        table_named("words").read(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["/data/words", "../words", "a/../../words", "file:///words", "sqlite:////data/a.db?table=t", "s3://b/words", "sqlite:///../a?table=t"],
)  # fmt: skip
def test_what_is_not_below_the_folder_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a path below the folder that is copied"):
        table_named(name)


@pytest.mark.parametrize("name", ["sqlite:///a.db", "postgresql://me:secret@db/shop"])
def test_a_database_needs_a_table(name: str) -> None:
    with pytest.raises(ConfigError, match=r"add \?table=NAME or \?query=SELECT") as raised:
        table_named(name)
    assert "secret" not in str(raised.value)


def test_a_server_is_shown_without_its_password() -> None:
    table: Any = table_named("postgresql://me:secret@db/shop_copy?table=totals&sslmode=require")
    assert (table.name, table.database) == ("totals in postgresql://***@db/shop_copy", "shop_copy")
    assert table.place == "postgresql://me:secret@db/shop_copy?sslmode=require"


def counts(**words: Any) -> list[dict[str, Any]]:
    return [{"word": word, "n": n} for word, n in words.items()]


DIFFERENCES: dict[str, tuple[Comparison, list[Any], list[Any], list[tuple[str, str, str]]]] = {
    "other order": (Comparison(), counts(cow=1, moon=2), [{"n": 2, "word": "moon"}, {"n": 1, "word": "cow"}], []),
    "other order, key": (Comparison(["word"]), counts(cow=1, moon=2), [{"n": 2, "word": "moon"}, {"n": 1, "word": "cow"}], []),
    "what was expected and found": (
        Comparison(["word"]), counts(cow=1, moon=2, the=3), counts(cow=2, moon=2, a=1),
        [("a", "no row", "n=1"), ("cow", "n=1", "n=2"), ("the", "n=3", "no row")],
    ),
    "rows without a key are counted": (
        Comparison(), [{"id": 1}, {"id": 2}], [{"id": 1}] * 2, [("id=1", "1 ×", "2 ×"), ("id=2", "1 ×", "no row")],
    ),
    "a key that is the whole row": (Comparison(["id"]), [{"id": 1}], [{"id": 1}] * 3, [("1", "1 ×", "3 ×")]),
    "a key with several rows": (
        Comparison(["k"]), [{"k": 1, "v": "a"}], [*[{"k": 1, "v": "a"}] * 2, {"k": 1, "v": "b"}],
        [("1", "v=a", "2 × v=a; v=b")],
    ),
    "a key of two columns": (
        Comparison(["shop", "day"]), [{"day": "mon", "shop": "oslo", "euros": 3}], [],
        [("day=mon, shop=oslo", "euros=3", "no row")],
    ),
    "ignored": (Comparison(ignored=["at"]), [{"k": 1, "at": "10:00"}], [{"k": 1, "at": "11:00"}], []),
    "not ignored": (
        Comparison(), [{"k": 1, "at": "10"}], [{"k": 1, "at": "11"}],
        [("at=10, k=1", "1 ×", "no row"), ("at=11, k=1", "no row", "1 ×")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences_are_told_row_by_row(name: str) -> None:
    comparison, one, other, wanted = DIFFERENCES[name]
    assert comparison.differences(one, other) == [RowDifference(*difference) for difference in wanted]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.1 + 0.2, 0.3), (2, 2.0), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ([1], (1,)),
        (-0.0, 0.0), ([0.1 + 0.2, {"a": -0.0}], [0.3, {"a": 0.0}]),
    ],
)  # fmt: skip
def test_equal_values_of_another_form_are_equal(one: Any, other: Any) -> None:
    assert Comparison().differences([{"v": one}], [{"v": other}]) == []


@pytest.mark.parametrize(("one", "other"), [(0.3, 0.3001), (None, 0), ([1], [2]), (None, "NULL"), ("NULL", "'NULL'")])
def test_other_values_are_not(one: Any, other: Any) -> None:
    assert len(Comparison().differences([{"v": one}], [{"v": other}])) == 2


def test_a_key_that_is_no_column_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="--key wort is not a column of the table; it has word, n"):
        Comparison(["wort"]).differences(counts(cow=1), [])


CALLS = [
    FunctionCall(0, batch, 2.0, ("job.py:4", "job.py:5", *["job.py:6", "job.py:7"] * 50, "job.py:8"))
    for batch in range(5)
]


def test_the_moments_come_in_turn_and_after_is_the_first() -> None:
    assert [point.moment for point in choose(CALLS, 8, USUAL, 1)] == [*USUAL, *USUAL[:2]]
    assert USUAL[0] is KillMoment.after
    assert KillMoment.older not in USUAL


def test_no_point_comes_twice_while_there_are_others() -> None:
    points = choose(CALLS, 5, [KillMoment.after], 1)
    assert {point.batch for point in points} == {0, 1, 2, 3, 4}
    assert len(choose(CALLS, 7, [KillMoment.after], 1)) == 7


def test_a_seed_chooses_the_same_points_again() -> None:
    assert choose(CALLS, 12, tuple(KillMoment), 5) == choose(CALLS, 12, tuple(KillMoment), 5)
    assert choose(CALLS, 12, tuple(KillMoment), 5) != choose(CALLS, 12, tuple(KillMoment), 6)


def test_a_line_of_a_loop_is_no_likelier_than_another_and_the_first_is_none() -> None:
    lines = [point.line for point in choose(CALLS, 40, [KillMoment.line], 2)]
    assert 0 not in lines
    assert sum(line in (1, 102) for line in lines) > 8, "two of four lines run once, a hundred others are a loop's"


def test_a_function_without_lines_is_killed_at_a_time() -> None:
    (point,) = choose([FunctionCall(0, 3, 2.0)], 1, [KillMoment.line], 1)
    assert (point.moment, point.batch, point.of_s) == (KillMoment.time, 3, 2.0)
    assert 0.1 <= (point.after_s or 0) <= 1.9


def test_an_older_checkpoint_needs_a_batch_before() -> None:
    assert choose(CALLS[:1], 3, [KillMoment.older], 1) == []
    points = choose(
        [FunctionCall(0, 0, 1.0), FunctionCall(1, 3, 1.0), FunctionCall(1, 4, 1.0)], 3, [KillMoment.older], 1
    )
    assert {(point.query, point.batch) for point in points} == {(1, 4)}
    asked = points[0].as_request("copy")
    assert [asked[name] for name in ("moment", "query", "batch", "copy_to", "copy_batch")] == ["older", 1, 4, "copy", 3]
    assert not any(KillPoint(moment, 0, 2).as_request("copy")["copy_batch"] for moment in USUAL)


def test_lines_are_different_ones_as_long_as_there_are_any() -> None:
    lines = ("job.py:1", *[f"job.py:{number}" for number in (2, 3, 2, 3, 4, 5)])
    calls = [FunctionCall(0, batch, 1.0, lines) for batch in range(9)]
    for seed in range(50):
        points = choose(calls, 6, [KillMoment.line], seed)
        assert {lines[point.line or 0] for point in points[:4]} == {*lines[1:]}
        assert len({*points}) == 6


def copied(folder: Path, copy: Path, most_bytes: int = 1_000_000_000) -> list[str]:
    copy_folder(folder, copy, most_bytes, lambda text: None)
    return sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job" / "books").mkdir(parents=True)
    (tmp_path / "job" / "job.py").write_text("print()")
    (tmp_path / "job" / "books" / "a.txt").write_text("the cow")
    return tmp_path / "job"


def test_files_and_folders_are_copied_without_environments(folder: Path, tmp_path: Path) -> None:
    (folder / ".venv").mkdir()
    (folder / ".venv" / "large").write_bytes(b"x" * 10_000)
    assert copied(folder, tmp_path / "copy", 1_000) == ["books/a.txt", "job.py"]


def test_what_a_link_leads_to_is_copied(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "part").write_text("1")
    (folder / "table").symlink_to(tmp_path / "table")
    (folder / "file").symlink_to(tmp_path / "table" / "part")
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    (folder / "books" / "back").symlink_to(folder)
    (folder / "self").symlink_to(folder)
    assert copied(folder, tmp_path / "copy") == ["books/a.txt", "file", "job.py", "table/part"]
    assert not any(path.is_symlink() for path in (tmp_path / "copy").rglob("*"))


def test_a_folder_that_is_too_large_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "large").write_bytes(b"x" * 2_000_001)
    with pytest.raises(TridentError, match=r"which has more than 2 MB or 100,000 files\. Put the job"):
        copied(folder, tmp_path / "copy", 2_000_000)


@pytest.mark.slow
def test_progress_is_told_of_a_large_one(folder: Path, tmp_path: Path) -> None:
    with (folder / "sparse").open("wb") as file:
        file.truncate(150_000_000)
    told: list[str] = []
    copy_folder(folder, tmp_path / "copy", 1_000_000_000, told.append)
    assert [text.rpartition(":")[2] for text in told] == [" 150 MB so far"]
