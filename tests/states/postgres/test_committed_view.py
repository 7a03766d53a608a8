"""The view of committed values says what readers of Trident say; the programs of the pages print what they show."""

import random
import re
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from spouts import FixedBatchSpout
from states.postgres import PostgresState
from tests.states.postgres.postgres_states import Home, numbers
from trident import TridentTopology
from trident.log.log_address import open_log, open_reader
from trident.log.records import AdoptRecord, CommitRecord
from trident.operations import Avg, Count, Max, Sum
from trident.state import OpaqueValue

ROWS = [("the", 1), ("cow", 2), ("the", 3), (None, 4)]


class Words:
    """A topology of one state, and what SQL says of it."""

    def __init__(self, home: Home, kind: str = "opaque", **options: Any) -> None:
        self.home, self.name, self.kind = home, f"view{next(numbers)}", kind
        self.options = {"table": self.name, **options}
        self.log = f"{home.url}?topology={self.name}"

    @property
    def view(self) -> str:
        return f'"{self.name}_committed"'

    def run(
        self, several: Any = None, *more: Any, named: Any = ("word", "total"), rename: Any = None, **config: Any
    ) -> None:
        """Take all rows, for several aggregates or a sum; `named`: the field of the key, and the sum."""
        word, given = named[0], (several,) if several else ("n", Sum(), named[1])
        spec = getattr(PostgresState, self.kind)(self.home.url, **self.options)
        topology = TridentTopology(self.name, rename=rename)
        stream = topology.new_stream("rows", FixedBatchSpout(f"{word}: string, n: bigint", 2, *ROWS, *more))
        stream.group_by(word).persistent_aggregate(spec, *given, state_name="words")
        with topology.start(**{"engine": "in_process", "log_dir": self.log, **config}) as running:
            running.process_all_available()

    def read(self, *columns: str, of: str = "_committed") -> list[Any]:
        return sorted(self.home.sql(f'SELECT word, {", ".join(columns)} FROM "{self.name}{of}"'), key=repr)

    def rows(self) -> list[Any]:
        return sorted(self.home.sql(f"SELECT * FROM {self.view}"), key=repr)


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_any_program_reads_what_is_committed(home: Home, kind: str) -> None:
    words = Words(home, kind)
    words.run()
    assert words.rows() == [("cow", 2), ("the", 4), (None, 4)]
    # A batch after the last recorded one, as a crash between state and record leaves it.
    begun = ", trident_attempt = 1048576, trident_before = total" if kind == "opaque" else ""
    home.sql(f'UPDATE "{words.name}" SET trident_txid = 3{begun}')
    home.sql(f'UPDATE "{words.name}" SET total = 99')
    ahead = [("cow", 99), ("the", 99), (None, 99)]
    assert words.rows() == ([("cow", 2), ("the", 4), (None, 4)] if kind == "opaque" else ahead)


def test_table_and_view_follow_a_declaration_that_has_changed(home: Home) -> None:
    words, later = Words(home), [("the", 7), ("old", 1), ("the", 9)]
    words.run({"total": Sum("n"), "rows": Count()})
    words.run({"rows": Count(), "total": Sum("n"), "largest": Max("n")}, *later[:1])
    for of in ("", "_committed"):
        found = words.read("total", "rows", "largest", of=of)
        assert found == [("cow", 2, 1, None), ("the", 11, 3, 7), (None, 4, 1, None)]
    words.run({"total": Sum("n"), "most": Max("n")}, *later[:2], rename={"largest": "most"})
    words.run({"total": Sum("n"), "most": Max("n")}, *later)
    assert words.read("total", "most") == [("cow", 2, None), ("old", 1, 1), ("the", 20, 9), (None, 4, None)]


def test_a_value_of_several_columns_is_read_as_it_is_committed(home: Home) -> None:
    words, columns = Words(home), ("total", "mean", "mean_count")
    words.run({"total": Sum("n"), "mean": Avg("n")})
    committed = [("cow", 2, 2.0, 1), ("the", 4, 2.0, 2), (None, 4, 4.0, 1)]
    assert words.read(*columns) == committed
    # A batch after the last recorded one, as a crash between state and record leaves it: a key of before, and a new one.
    befores = ", ".join(f"trident_before_{field} = {field}" for field in ("total", "mean", "mean_sum", "mean_count"))
    home.sql(f'UPDATE "{words.name}" SET trident_txid = 3, trident_before_null = false, {befores}')
    home.sql(f'UPDATE "{words.name}" SET total = 99, mean = NULL')
    new = "(word, total, trident_null, trident_txid, trident_attempt, trident_before_null)"
    home.sql(f"""INSERT INTO "{words.name}" {new} VALUES ('moon', 1, false, 3, 1048576, true)""")
    assert words.read(*columns) == committed


def test_names_of_any_kind_are_those_of_the_view(home: Home) -> None:
    words = Words(home)
    words.options["table"] = f'{words.name} of "100 %s" {{own}}'
    words.run(named=("value", "select"))
    name = words.options["table"].replace('"', '""')
    found = sorted(home.sql(f'SELECT value, "select" FROM "{name}_committed"'), key=repr)
    assert found == [("cow", 2), ("the", 4), (None, 4)]


def test_what_counts_is_what_the_rule_of_readers_says(home: Home) -> None:
    """For any winners, adopted batches and stored values: the rule in SQL beside the one in Python."""
    words, draw = Words(home), random.Random(7)
    with closing(open_log(words.log, words.name)) as log:
        for txid in range(1, 20):
            if txid == 9:
                log.append(AdoptRecord("words", 8, foreign=True))
            log.append(CommitRecord(txid, draw.choice([1, 2, 2, 3]) + txid // 4 * 10, {}, {}, {}, 0))
        words.run(
            log_dir=words.log, takeover=True, state_recovery="keep_totals_even_if_wrong", allow_changed_topology=True
        )
    with closing(open_reader(words.log)) as reader:
        snapshot = reader.refresh().snapshot("words")
    home.sql(f'TRUNCATE "{words.name}"')
    winners = [attempt for _, attempt in snapshot.winners.ranges]
    values = {}
    for number in range(600):
        txid, attempt = draw.randrange(snapshot.txid + 2), draw.choice([-1, *winners])
        values[f"k{number}"] = OpaqueValue(txid, attempt, draw.choice([None, 1]), draw.choice([None, 2]))
    with psycopg.connect(home.url, autocommit=True) as connection, connection.cursor() as cursor:
        statement = f'INSERT INTO "{words.name}" (word, trident_txid, trident_attempt, trident_before, total) VALUES '
        cursor.executemany(
            f"{statement}(%s, %s, %s, %s, %s)".encode(), [(word, *each) for word, each in values.items()]
        )
    wanted = {word: value.at(snapshot) for word, value in values.items() if value.at(snapshot) is not None}
    assert dict(words.rows()) == wanted
    assert 50 < len(wanted) < 600


def test_another_relation_of_that_name_is_left_alone_and_named(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    words = Words(home)
    home.sql(f"CREATE TABLE {words.view} (mine text)")
    words.run()
    assert f'of "{words.name}", because {words.view} is not ours: rename that' in caplog.text
    assert words.rows() == []
    home.sql(f"DROP TABLE {words.view}")
    words.run()  # the next start makes it
    assert len(words.rows()) == 3


def test_a_user_who_may_not_make_views_is_told_and_counts_all_the_same(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    words, schema, role = Words(home), f"own{next(numbers)}", f"clerk{next(numbers)}"
    words.options["schema"] = schema
    home.sql(f"CREATE SCHEMA {schema}; CREATE ROLE {role} LOGIN")
    words.run()  # the owner makes the tables
    try:
        home.sql(f"DROP VIEW {schema}.{words.view}; GRANT USAGE ON SCHEMA {schema} TO {role}")
        for tables in (f"ALL TABLES IN SCHEMA {schema}", "trident_log_chunks, trident_log_heads"):
            home.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {role}")
        words.home, words.log = home, words.log.replace("trident@", f"{role}@")
        words.options["user"] = role
        words.run()
        assert f'the view "{schema}".{words.view} of committed values was not made: permission denied' in caplog.text
        assert "CREATE on its schema" in caplog.text
        assert len(home.sql(f'SELECT * FROM {schema}."{words.name}"')) == 3
    finally:
        home.sql(f"DROP OWNED BY {role}; DROP ROLE {role}; DROP SCHEMA {schema} CASCADE")


def test_a_log_that_moves_elsewhere_takes_the_view_along(home: Home, tmp_path: Path) -> None:
    words = Words(home)
    words.run()
    assert home.sql(f"SELECT to_regclass('{words.view}')") != [(None,)]
    words.run(log_dir=str(tmp_path / "log"), state_recovery="keep_totals_even_if_wrong")
    assert home.sql(f"SELECT to_regclass('{words.view}')") == [(None,)]


def test_the_view_is_made_once_and_changes_with_its_statement(home: Home) -> None:
    words = Words(home)
    made = f"SELECT xmin::text FROM pg_class WHERE oid = '{words.view}'::regclass"
    words.run()
    before = home.sql(made)
    words.run()
    assert home.sql(made) == before
    home.sql(f"COMMENT ON VIEW {words.view} IS 'Committed values, made by Trident for Spark; of an older version'")
    words.run()
    assert home.sql(made) != before
    assert len(words.rows()) == 3


_DOCS = Path(__file__).parents[3] / "docs"
_PAGE = _DOCS / "cookbook.md"


def test_a_web_page_reads_the_table(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = _PAGE.read_text(encoding="utf-8").partition("## A table in PostgreSQL for a web page")[2]
    program, query, shown = re.findall(r"```py\n(.*?)```\n\n    (SELECT.*?);\n(.*?)\n\n", text, re.DOTALL)[0]
    exec(compile(program, "cookbook", "exec"), {"url": home.url})
    with psycopg.connect(home.url) as db:
        rows = db.execute(query).fetchall()
    assert [[str(value) for value in row] for row in rows] == [
        [cell.strip() for cell in line.split("|")] for line in shown.splitlines()
    ]


def test_a_feed_of_changes_is_printed_and_followed_as_its_pages_show(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (_DOCS / "reading-states.md").read_text(encoding="utf-8").partition("## What each batch changed")[2]
    program, shown = re.findall(r"```py\n(.*?)```\n\n((?:    [^\n]*\n)+)", text, re.DOTALL)[0]
    names: dict[str, Any] = {"url": home.url}
    exec(compile(program, "reading-states", "exec"), names)
    assert capsys.readouterr().out == textwrap.dedent(shown)
    text = (_DOCS / "spouts.md").read_text(encoding="utf-8").partition("## The changes of a state")[2]
    exec(compile(re.findall(r"```py\n(.*?)```", text, re.DOTALL)[0], "spouts", "exec"), names)
    with names["follower"].start(engine="in_process") as running:
        running.process_all_available()
        assert dict(running.state("more").get_tuples()) == {"oslo": 5, "bergen": 5}
