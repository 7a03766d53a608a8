"""A folder with a job whose PySpark is a stub of fifty lines: it starts at once and keeps a checkpoint as Spark does."""

import sys
import textwrap
from pathlib import Path

from trident.crashtest import Comparison, CrashReport, CrashTest, KillMoment, TimeLimits, table_named

COMMAND = [sys.executable, "job.py"]
COUNTS = "sqlite:///counts.db?table=counts"

_WRITER = """
    import os, time
    from pathlib import Path

    class DataStreamWriter:
        def __init__(self, batches, ends=True):
            self.batches, self.ends, self.given = batches, ends, {}

        def option(self, key, value):
            self.given[key.lower()] = value
            return self

        def options(self, **given):
            for each in given.items():
                self.option(*each)
            return self

        def foreachBatch(self, func):
            self.function = func
            return self

        def start(self, queryName=None):
            checkpoint = Path(self.given.get("checkpointlocation", f"all/{queryName}"))
            offsets, commits = checkpoint / "offsets", checkpoint / "commits"
            for each in (offsets, commits):
                each.mkdir(parents=True, exist_ok=True)
            first = max((int(each.name) for each in commits.glob("[0-9]*")), default=-1) + 1
            for number in range(first, len(self.batches)):
                (offsets / str(number)).write_text("")
                self.function(self.batches[number], number)
                (commits / f".{number}.tmp").write_text("")
                os.rename(commits / f".{number}.tmp", commits / str(number))
            time.sleep(0.05)  # Spark, too, ends some time after its last batch
            while not self.ends:
                time.sleep(0.05)
"""
_SESSION = """
    class SparkSession:
        @staticmethod
        def getActiveSession():
            return None
"""
_JOB = """
    import json, os, sqlite3, sys, threading, time
    from pathlib import Path
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    BATCHES = [["the cow", "the moon"], ["the cow"], ["the moon"], ["a cow"]]
    ADD = "INSERT INTO counts VALUES (?, 1) ON CONFLICT (word) DO UPDATE SET n = n + 1"
    db = sqlite3.connect("counts.db", isolation_level=None, check_same_thread=False)
    db.execute("CREATE TABLE IF NOT EXISTS counts (word TEXT PRIMARY KEY, n INTEGER)")
    db.execute("CREATE TABLE IF NOT EXISTS done (batch INTEGER PRIMARY KEY)")

    def words(batch):
        return [word for line in batch for word in line.split()]

    def run(function, checkpoint="checkpoint", ends=True):
        DataStreamWriter(BATCHES, ends).foreachBatch(function).option("checkpointLocation", checkpoint).start()
"""
_GUARDED = """
        def add(batch, batch_id):
            db.execute("BEGIN")
            if not db.execute("SELECT 1 FROM done WHERE batch = ?", (batch_id,)).fetchone():
                db.executemany(ADD, [(word,) for word in words(batch)])
                db.execute("INSERT INTO done VALUES (?)", (batch_id,))
            db.execute("COMMIT")
"""
JOBS = {
    # Adds in one transaction, and cannot know whether it has added already.
    "counter": """
        def add(batch, batch_id):
            db.execute("BEGIN")
            db.executemany(ADD, [(word,) for word in words(batch)])
            db.execute("COMMIT")

        run(add)
    """,
    # Adds word by word, and skips a batch that it has added to the end.
    "halves": """
        def add(batch, batch_id):
            if db.execute("SELECT 1 FROM done WHERE batch = ?", (batch_id,)).fetchone():
                return
            for word in words(batch):
                db.execute(ADD, (word,))
            db.execute("INSERT INTO done VALUES (?)", (batch_id,))

        run(add)
    """,
    # The batch and its number in one transaction.
    "guarded": f"{_GUARDED}\n        run(add)\n",
    # Takes the batch that it wrote last once more, and no older one.
    "strict": """
        def add(batch, batch_id):
            db.execute("BEGIN")
            (last,) = db.execute("SELECT max(batch) FROM done").fetchone()
            if last is not None and batch_id < last:
                sys.exit(f"batch {batch_id} after batch {last}: the checkpoint is an older copy")
            if batch_id != last:
                db.executemany(ADD, [(word,) for word in words(batch)])
                db.execute("INSERT INTO done VALUES (?)", (batch_id,))
            db.execute("COMMIT")

        run(add)
    """,
    # Has a lock that a killed run leaves behind.
    "locked": """
        def add(batch, batch_id):
            Path("lock").touch(exist_ok=False)
            Path("counted.json").write_text(json.dumps({"batches": batch_id}))
            Path("lock").unlink()

        run(add)
    """,
    # Writes a file a batch, piece by piece, and leaves one that is there as it is.
    "torn": """
        def add(batch, batch_id):
            file = Path(f"out/{batch_id}.jsonl")
            if file.exists():
                return
            file.parent.mkdir(exist_ok=True)
            with file.open("w") as out:
                for word in words(batch):
                    out.write('{"word": ')
                    out.flush()
                    out.write(f'"{word}"}}\\n')

        run(add)
    """,
    # As `guarded`, and a function that takes long.
    "slow": """
        def add(batch, batch_id):
            threading.Event().wait(0.1)
            db.execute("INSERT OR REPLACE INTO counts VALUES (?, ?)", (f"batch {batch_id}", 1))

        run(add)
    """,
    # As `guarded`, but its first call fails, in each process, and it waits for more when it is done.
    "restarting": f"""{_GUARDED}
        calls = []

        def add_later(batch, batch_id):
            calls.append(batch_id)
            if len(calls) == 1:
                raise OSError("not yet")
            add(batch, batch_id)

        try:
            run(add_later, ends=False)
        except OSError:
            run(add_later, ends=False)
    """,
    # Its first call of all, in whatever process, runs many more lines than any other.
    "shorter": """
        def add(batch, batch_id):
            number = 0
            if not Path("OUTSIDE").exists():
                number += 1
                number += 1
                number += 1
                number += 1
                Path("OUTSIDE").touch()
            db.execute("INSERT OR REPLACE INTO counts VALUES (?, ?)", (f"batch {batch_id}", 1))

        run(add)
    """,
}
# They wait for more when they are done.
JOBS |= {f"endless {job}": JOBS[job].replace("run(add)", "run(add, ends=False)") for job in ("counter", "guarded")}


def write_job(folder: Path, text: str) -> None:
    """Write the stub, and a job with this text behind what all jobs have."""
    for module, code in (
        ("pyspark/__init__.py", ""),
        ("pyspark/sql/__init__.py", _SESSION),
        ("pyspark/sql/streaming/__init__.py", ""),
        ("pyspark/sql/streaming/readwriter.py", _WRITER),
        ("job.py", _JOB),
    ):
        (folder / module).parent.mkdir(parents=True, exist_ok=True)
        (folder / module).write_text(textwrap.dedent(code), encoding="utf-8")
    with (folder / "job.py").open("a", encoding="utf-8") as job:
        job.write(textwrap.dedent(text))


def crashed(folder: Path, table: str = COUNTS, key: str = "word", reset: str = "", **changes: object) -> CrashReport:
    given: dict[str, object] = {
        "limits": TimeLimits(timeout_s=60, idle_s=0.5),
        "moments": tuple(KillMoment),
        "kills": 7,
        **changes,
    }
    test = CrashTest(COMMAND, folder, table_named(table), Comparison([key] if key else []), reset, **given)  # type: ignore[arg-type]
    return test.run()
