"""DeltaSpout on tables that Spark writes: the same changes as Spark's own feed, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent

PROGRAM = """
import json, sys
from pathlib import Path
from spouts import DeltaSpout
from tests.spouts.reading import definitions, rows_of
from tests.states.delta.delta_states import spark_with_delta

root, spark = Path(sys.argv[1]), spark_with_delta()

def table(name, columns, properties, *statements):
    at = f"delta.`{root / name}`"
    spark.sql(f"CREATE TABLE {at} ({columns}) USING delta TBLPROPERTIES ({properties})")
    for statement in statements:
        spark.sql(statement.format(at))

def say(name, **arguments):
    try:
        spout = DeltaSpout(root / name, **arguments)
        coordinator = spout.get_coordinator({})
        rows = [row for one in definitions(coordinator) for row in rows_of(spout, coordinator, one, 2)]
        said = sorted(str(row[:-1] if arguments.get("mode") == "changes" else row) for row in rows)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    print("FACTS " + json.dumps(said), flush=True)

table("feed", "id BIGINT, name STRING, day DATE", "delta.enableChangeDataFeed=true",
    "INSERT INTO {} VALUES (1,'a',DATE'2024-01-01'),(2,'b',DATE'2024-01-02')",
    "UPDATE {} SET name='x' WHERE id=1",
    "MERGE INTO {} t USING (SELECT 2L id, 'm' name, DATE'2024-01-02' day UNION ALL SELECT 3L,'n',DATE'2024-01-03') s "
    "ON t.id=s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    "DELETE FROM {} WHERE id=1", "OPTIMIZE {}")
feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(str(root / "feed"))
print("FACTS " + json.dumps(sorted(str(tuple(row)[:-1]) for row in feed.collect())), flush=True)
say("feed", mode="changes", starting_version=0)
table("types", "i INT, d DECIMAL(10,2), t TIMESTAMP, n TIMESTAMP_NTZ, m MAP<STRING,INT>, a ARRAY<STRUCT<x:BIGINT>>", "a=1",
    "INSERT INTO {} VALUES (1, 1.5, TIMESTAMP'2024-01-01', TIMESTAMP_NTZ'2024-01-01', MAP('a',1), ARRAY(NAMED_STRUCT('x',1L)))")
say("types", fields=["i", "d", "m", "a"])
say("types", fields=["t", "n"])
table("vectors", "id BIGINT", "delta.enableDeletionVectors=true",
    "INSERT INTO {} SELECT id FROM RANGE(0, 1000, 1, 1)", "DELETE FROM {} WHERE id=7")
say("vectors")
table("mapped", "id BIGINT", "delta.columnMapping.mode='name'", "INSERT INTO {} VALUES (1)")
say("mapped")
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.soak
def test_tables_that_spark_writes_are_read_as_spark_reads_them_or_refused_by_name(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    facts = [json.loads(line.partition("FACTS ")[2]) for line in done.stdout.splitlines() if "FACTS " in line]
    by_spark, feed, types, times, vectors, mapped = facts
    assert feed == by_spark
    assert len(feed) == 8
    assert types == ["(1, Decimal('1.50'), [('a', 1)], [{'x': 1}])"]
    assert times == [
        "(datetime.datetime(2024, 1, 1, 0, 0, tzinfo=zoneinfo.ZoneInfo(key='UTC')), datetime.datetime(2024, 1, 1, 0, 0))"
    ]
    assert "SpoutError: version 2 of the Delta table" in vectors
    assert "has deletion vectors" in vectors
    assert "maps its columns by name (delta.columnMapping.mode)" in mapped
