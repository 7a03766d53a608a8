"""A Delta state and Spark."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from states.delta import delta_dataframe
from tests.states.delta.delta_states import ROOT, Log, commit, state_at
from trident.errors import EnvironmentProblem

SPARK = """
import json, shutil, sys
from states.delta import delta_dataframe
from trident.errors import StateError
from pathlib import Path
from tests.states.delta.delta_states import *
from trident.state.txid import Sentinel, Snapshot
from trident.state.txid import Winners

path, other = Path(sys.argv[1]), Path(sys.argv[2])
spark = spark_with_delta()
say = lambda **facts: print("FACTS " + json.dumps(facts), flush=True)

def counts():
    frame = delta_dataframe(spark, path)
    return [frame.schema.simpleString(), dict(sorted(tuple(row) for row in frame.collect()))]

say(before=counts())
files = live_files(path)
spark.sql(f"OPTIMIZE delta.`{changes(path)}`")
say(merged=files > live_files(path), optimized=counts()[1])
state, log = state_at(path), Log()
log.winners, log.expected = Winners(((1, 1),)), Sentinel("inc", 5, 1)
commit(state, log, 6, 1, {"man": 1})
# What a program on Spark's side appends is a write like any other: it has the highest number, so it counts.
schema = spark.read.format("delta").load(str(changes(path))).schema
row = spark.createDataFrame([("added", 6, 1, None, 50, 10**6, None)], schema)
row.write.format("delta").mode("append").save(str(changes(path)))
say(state=dict(sorted(state.get_tuples())), reader=values(reader_at(path), "added", "man"))
commit(state, log, 7, 1, {"man": 1, "added": 1})
say(after=counts()[1], again=dict(sorted(state_at(path).get_tuples())))
commit(state, log, 8, 1, {"man": 1, "new": 1}, record=False)
state.close()
shown = lambda txid: dict(map(tuple, state_at(path).to_dataframe(spark, Snapshot(txid, log.winners)).collect()))
say(newest=counts()[1]["man"], committed=[(shown(txid)["man"], "new" in shown(txid)) for txid in (7, 6)])
plain = lambda: spark.read.format("delta").load(str(path))
last = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").collect()[0].userMetadata
say(plain=[plain().schema.simpleString(), dict(sorted(map(tuple, plain().collect())))], last=last)
spark.sql(f"OPTIMIZE delta.`{path}`")
spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
say(kept=plain().count() == len(plain().collect()) and len(values(reader_at(path), "man")) == 1)
shutil.copytree(changes(path), other.with_name("old"))
say(old=dict(sorted(map(tuple, delta_dataframe(spark, other.with_name("old")).collect())))["man"])
names = StateConf("words", "odd", key_fields=(("_latest", "string"), ("a`b", "string")), value_type="bigint")
state = state_at(other.with_name("odd"), names)
odd = [state.to_dataframe(spark, Snapshot(0)).columns]
commit(state, Log(), 1, 1, {("man", "x"): 1})
say(odd=odd + [list(row) for row in state.to_dataframe(spark).collect()])
spark.range(3).write.format("delta").save(str(other))
try:
    delta_dataframe(spark, other)
except StateError as error:
    say(refused=str(error))
spark.stop()
"""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)  # the first run on a machine fetches the library
def test_spark_reads_what_the_state_wrote_and_the_state_reads_what_spark_wrote(tmp_path: Path) -> None:
    path, log = tmp_path / "state", Log()
    state = state_at(path)
    for number in range(1, 6):
        commit(state, log, number, 1, {"man": 1, f"w{number}": number})
    state.close()
    run = subprocess.run(
        [sys.executable, "-c", SPARK, str(path), str(tmp_path / "other")], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-3000:]
    facts: dict[str, Any] = {}
    for line in run.stdout.splitlines():
        if line.startswith("FACTS "):
            facts |= json.loads(line[6:])
    words = {f"w{n}": n for n in range(1, 6)}
    assert facts.pop("before") == ["struct<word:string,value:bigint>", {"man": 5, **words}]
    assert facts.pop("refused").startswith("read Delta table")
    assert facts == {
        "merged": True,
        "optimized": {"man": 5, **words},
        "state": {"added": 50, "man": 6, **words},
        "reader": [50, 6],
        "after": {"added": 51, "man": 7, **words},
        "again": {"added": 51, "man": 7, **words},
        "newest": 8,
        "plain": ["struct<word:string,value:bigint>", {"added": 51, "man": 7, **words}],
        "last": "batch 7 of words/counts",
        "kept": True,
        "old": 8,
        "odd": [["_latest", "a`b", "value"], ["man", "x", 1]],
        "committed": [[7, False], [6, False]],
    }


BEYOND = """
import json, sys
from states.delta import delta_dataframe
from pathlib import Path
from tests.states.delta.delta_states import *
from trident.state.txid import Snapshot

path, log, spark = Path(sys.argv[1]), Log(), spark_with_delta()
state = state_at(path, max_keys_in_memory=5, background_maintenance=False, publish_every_s=1000)
model = {None: 0}
for number in range(1, 13):
    batch = {word: 1 for word in [None, *(f"w{(number * 5 + at) % 20}" for at in range(7))]}
    txid = log.txid(number, 1)
    state.begin_commit(txid)
    update(state, batch)
    if number == 12:
        state.multi_remove([("w1",), ("w9",)])
    state.commit(txid)
    log.record(txid)
    if number < 12:  # the table at the path does not show the last batch
        state.recorded(Snapshot(number, log.winners))
rows = lambda frame: sorted(map(tuple, frame.collect()), key=str)
wanted = sorted(state.get_tuples(), key=str)
there = spark.read.format("delta").load(str(path))
print("FACTS " + json.dumps({
    "columns": there.columns,
    "fewer": rows(there) != wanted,
    "newest": rows(delta_dataframe(spark, path)) == wanted,
    "shown": rows(state.to_dataframe(spark, Snapshot(12, log.winners))) == wanted,
    "past": dict(rows(state.to_dataframe(spark, Snapshot(6, log.winners)))) == dict(state.at(6).get_tuples()),
    "keys": len(wanted),
}))
spark.stop()
"""


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(600)  # the first run on a machine fetches the library
def test_spark_reads_a_state_beyond_memory(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", BEYOND, str(tmp_path / "state")], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-3000:]
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("FACTS ")]
    assert json.loads(line[6:]) == {
        "columns": ["word", "value"], "fewer": True, "newest": True, "shown": True, "past": True, "keys": 19,
    }  # fmt: skip


@pytest.mark.long
def test_a_session_without_the_library_of_delta_is_named(tmp_path: Path, spark: SparkSession) -> None:
    commit(state_at(tmp_path), Log(), 1, 1, {"man": 1})
    with pytest.raises(EnvironmentProblem, match="started without the library of Delta .*delta_session_conf"):
        delta_dataframe(spark, tmp_path)
