"""Jobs as people write them: seventeen that are right and four that are not, each a small text; what is below is one program.

To add a job, add a `Job` to the table: its text ends with a call of `run(function)`, and names the table that it writes.
"""

import json
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trident.crashtest import Comparison, CrashReport, CrashTest, KillMoment, table_named

SMALL_SPARK = "--master local[2] --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=1 pyspark-shell"
"""`PYSPARK_SUBMIT_ARGS` of a Spark that starts quickly."""

_ORDERS = [
    [("a", "oslo", 4), ("b", "bergen", 5), ("c", "oslo", 7)],
    [("d", "bergen", 1), ("e", "oslo", 2), ("f", "tromso", 9)],
    [("g", "oslo", 3), ("h", "tromso", 6), ("i", "bergen", 8)],
]
_HEAD = """
import json, os, random, sqlite3, sys, time
from pathlib import Path
from pyspark.sql import SparkSession, functions as F

ADD = "INSERT INTO totals VALUES (?, ?) ON CONFLICT (shop) DO UPDATE SET total = totals.total + excluded.total"
TABLE = "CREATE TABLE IF NOT EXISTS totals (shop TEXT PRIMARY KEY, total BIGINT)"
spark = SparkSession.builder.getOrCreate()
orders = spark.readStream.option("maxFilesPerTrigger", 1).schema("id string, shop string, euros long").json("orders")

def started(function, rows=orders, checkpoint="checkpoint", mode="append", **trigger):
    writer = rows.writeStream.foreachBatch(function).outputMode(mode).option("checkpointLocation", checkpoint)
    return writer.trigger(**(trigger or {"availableNow": True})).start()

def run(function, *rows, **options):
    started(function, *rows, **options).awaitTermination()

def totals(batch):
    return batch.groupBy("shop").agg(F.sum("euros").alias("total")).collect()
"""
_SQLITE = "sqlite:///shop.db?table=totals"
_ROWS = "shown:rows"


@dataclass(frozen=True)
class Job:
    """A job.

    `what`: what it does.
    `code`: the text behind what all jobs have.
    `table`, `key`, `ignored`: what is compared, as on the command line.
    `shown`: the module `shown`, whose function `rows` returns the table; empty: there is none.
    `by_line`: whether only a kill before the right line shows what is wrong.
    """

    what: str
    code: str
    table: str = _SQLITE
    key: str = "shop"
    ignored: tuple[str, ...] = ()
    shown: str = ""
    by_line: bool = False


_POSTGRES_SHOWN = """
    import os, psycopg

    def rows():
        with psycopg.connect(os.environ["SHOP_POSTGRES"]) as db:
            return [{"shop": shop, "total": total} for shop, total in db.execute("SELECT shop, total FROM totals")]
"""
_REDIS_SHOWN = """
    import os, redis

    def rows():
        server = redis.Redis.from_url(os.environ["SHOP_REDIS"], decode_responses=True)
        return [{"shop": shop, "total": int(total)} for shop, total in server.hgetall("totals").items()]
"""
_KEPT = """
    import os
    from states.{package} import {state}
    from trident import exactly_once, open_state
    from trident.operations import Sum

    add = exactly_once("shop", {state}.opaque({where}), group_by="shop", aggregate=Sum(), of="euros", value="total",
                       schema="id: string, shop: string, euros: bigint")

    def rows():
        with open_state(add.topology, "total") as state:
            return [{{"shop": shop, "total": total}} for shop, total in state.get_tuples()]
"""
_KEPT_JOB = "from shown import add\nrun(add)"

RIGHT = {
    "transaction": Job(
        "SQLite: totals and the number of the batch in one transaction",
        """
        db = sqlite3.connect("shop.db", isolation_level=None, check_same_thread=False)
        db.execute(TABLE)
        db.execute("CREATE TABLE IF NOT EXISTS done (batch INTEGER PRIMARY KEY)")

        def add(batch, batch_id):
            found = totals(batch)
            db.execute("BEGIN IMMEDIATE")
            if not db.execute("SELECT 1 FROM done WHERE batch = ?", (batch_id,)).fetchone():
                for pair in found:
                    db.execute(ADD, pair)
                db.execute("INSERT INTO done VALUES (?)", (batch_id,))
            db.execute("COMMIT")

        run(add)
        """,
    ),
    "unique id": Job(
        "SQLite: rows with a unique id, which are there once however often they come",
        """
        def add(batch, batch_id):
            with sqlite3.connect("shop.db") as db:
                db.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, shop TEXT, euros INTEGER)")
                db.executemany("INSERT OR IGNORE INTO orders VALUES (?, ?, ?)", batch.collect())

        run(add)
        """,
        "sqlite:///shop.db?query=SELECT shop, sum(euros) AS total FROM orders GROUP BY shop",
    ),
    "object with retries": Job(
        "SQLite: a callable object with a log of totals by batch, which tries again on an error of its own",
        """
        class Target:
            def __call__(self, batch, batch_id):
                for attempt in range(5):
                    try:
                        return self.write(totals(batch), batch_id)
                    except sqlite3.OperationalError:
                        if attempt == 4:
                            raise

            def write(self, found, batch_id):
                with sqlite3.connect("shop.db") as db:
                    db.execute("CREATE TABLE IF NOT EXISTS parts (batch INT, shop TEXT, total INT, UNIQUE (batch, shop))")
                    for number, (shop, total) in enumerate(found):
                        if random.random() < 0.3:
                            raise sqlite3.OperationalError("database is locked")
                        db.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?)", (batch_id, shop, total))

        target = Target()
        for attempt in range(50):
            try:
                run(target)
                break
            except Exception:
                continue
        else:
            sys.exit("not even in fifty attempts")
        """,
        "sqlite:///shop.db?query=SELECT shop, sum(total) AS total FROM parts GROUP BY shop",
    ),
    "complete totals": Job(
        "SQLite: all totals of Spark's own state in each batch (output mode complete)",
        """
        def replace(batch, batch_id):
            rows = batch.collect()
            with sqlite3.connect("shop.db") as db:
                db.execute(TABLE)
                db.execute("DELETE FROM totals")
                db.executemany("INSERT INTO totals VALUES (?, ?)", rows)

        run(replace, orders.groupBy("shop").agg(F.sum("euros").alias("total")), mode="complete")
        """,
    ),
    "folder of a batch": Job(
        "Parquet: a folder named by the number of the batch is overwritten",
        """
        def write(batch, batch_id):
            batch.write.mode("overwrite").parquet(f"sold/batch={batch_id}")

        run(write)
        """,
        "sold",
        "id",
        ("batch",),
    ),
    "renamed file": Job(
        "JSON: a file named by the number of the batch, in no order of rows, is written aside and renamed",
        """
        def write(batch, batch_id):
            rows = [row.asDict() for row in batch.repartition(4).collect()]
            random.shuffle(rows)
            Path("sold").mkdir(exist_ok=True)
            part = Path("sold", f".{batch_id}.part")
            part.write_text("".join(json.dumps(row) + "\\n" for row in rows))
            part.replace(f"sold/{batch_id}.json")

        run(write)
        """,
        "sold",
        "",
    ),
    "one file": Job(
        "JSON: one file with totals and the last number of a batch is replaced by a rename",
        """
        def add(batch, batch_id):
            found = totals(batch)
            kept = json.loads(Path("kept.json").read_text()) if Path("kept.json").exists() else {"batch": -1, "totals": {}}
            if batch_id <= kept["batch"]:
                return
            for shop, total in found:
                kept["totals"][shop] = kept["totals"].get(shop, 0) + total
            Path("kept.part").write_text(json.dumps({**kept, "batch": batch_id}))
            os.replace("kept.part", "kept.json")

        run(add)
        """,
        _ROWS,
        shown="""
        import json

        def rows():
            with open("kept.json") as file:
                return [{"shop": shop, "total": total} for shop, total in json.load(file)["totals"].items()]
        """,
    ),
    "delta merge": Job(
        "Delta: MERGE of totals by shop and number of the batch",
        """
        from deltalake import DeltaTable, write_deltalake

        def merge(batch, batch_id):
            rows = batch.groupBy("shop").agg(F.sum("euros").alias("total")).withColumn("batch", F.lit(batch_id)).toArrow()
            if not DeltaTable.is_deltatable("sold"):
                write_deltalake("sold", rows.slice(0, 0))
            merged = DeltaTable("sold").merge(rows, "s.shop = t.shop AND s.batch = t.batch", source_alias="s", target_alias="t")
            merged.when_matched_update_all().when_not_matched_insert_all().execute()

        run(merge)
        """,
        "sold",
        "",
        ("batch",),
    ),
    "delta replace": Job(
        "Delta: the rows of the batch are replaced by a predicate; after the batch, the table is compacted",
        """
        from deltalake import DeltaTable, write_deltalake

        def replace(batch, batch_id):
            rows = batch.withColumn("batch", F.lit(batch_id)).toArrow()
            if not DeltaTable.is_deltatable("sold"):
                write_deltalake("sold", rows.slice(0, 0))
            write_deltalake("sold", rows, mode="overwrite", predicate=f"batch = {batch_id}")
            DeltaTable("sold").optimize.compact()

        run(replace)
        """,
        "sold",
        "id",
        ("batch",),
    ),
    "postgres": Job(
        "PostgreSQL: upsert of sums, and the number of the batch in the same transaction",
        """
        import psycopg

        def add(batch, batch_id):
            with psycopg.connect(os.environ["SHOP_POSTGRES"]) as db:
                db.execute(TABLE)
                db.execute("CREATE TABLE IF NOT EXISTS done (batch bigint PRIMARY KEY)")
                noted = db.execute("INSERT INTO done VALUES (%s) ON CONFLICT DO NOTHING", (batch_id,)).rowcount
                if noted:
                    for pair in totals(batch):
                        db.execute(ADD.replace("?", "%s"), pair)

        run(add)
        """,
        "postgresql",
    ),
    "redis script": Job(
        "Redis: a Lua script adds, and remembers the number of the batch",
        """
        import redis

        server = redis.Redis.from_url(os.environ["SHOP_REDIS"])
        add_once = server.register_script('''
            if tonumber(redis.call("GET", KEYS[2]) or -1) >= tonumber(ARGV[1]) then return 0 end
            for at = 2, #ARGV, 2 do redis.call("HINCRBY", KEYS[1], ARGV[at], ARGV[at + 1]) end
            redis.call("SET", KEYS[2], ARGV[1])
            return 1
        ''')

        def add(batch, batch_id):
            add_once(["totals", "batch"], [batch_id, *[part for pair in totals(batch) for part in pair]])

        run(add)
        """,
        _ROWS,
        shown=_REDIS_SHOWN,
    ),
    "redis totals": Job(
        "Redis: totals of Spark's own state are set; the job does not end by itself",
        """
        import redis

        server = redis.Redis.from_url(os.environ["SHOP_REDIS"])

        def put(batch, batch_id):
            for shop, total in batch.collect():
                server.hset("totals", shop, total)

        run(put, orders.groupBy("shop").agg(F.sum("euros")), mode="complete", processingTime="0 seconds")
        """,
        _ROWS,
        shown=_REDIS_SHOWN,
    ),
    "two queries": Job(
        "Two queries: Spark's own file sink, and a function that keeps the greatest order of a shop",
        """
        db = sqlite3.connect("shop.db", isolation_level=None, check_same_thread=False)
        db.execute("CREATE TABLE IF NOT EXISTS totals (shop TEXT PRIMARY KEY, most INTEGER)")

        def greatest(batch, batch_id):
            for shop, most in batch.groupBy("shop").agg(F.max("euros")).collect():
                db.execute("INSERT INTO totals VALUES (?, ?) ON CONFLICT (shop) DO UPDATE "
                           "SET most = max(most, excluded.most)", (shop, most))

        sink = orders.writeStream.format("parquet").option("checkpointLocation", "checkpoints/files")
        first = sink.trigger(availableNow=True).start("sold")
        run(greatest, checkpoint="checkpoints/greatest")
        first.awaitTermination()
        """,
        "sold",
        "id",
    ),
    "two sinks": Job(
        "Two sinks in one function, each of which may be written again: Parquet by batch, SQLite by id",
        """
        def both(batch, batch_id):
            batch.persist()
            batch.write.mode("overwrite").parquet(f"archive/batch={batch_id}")
            with sqlite3.connect("shop.db") as db:
                db.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, shop TEXT, euros INTEGER)")
                db.executemany("INSERT OR REPLACE INTO orders VALUES (?, ?, ?)", batch.collect())
            batch.unpersist()

        run(both)
        """,
        _ROWS,
        "id",
        shown="""
        import sqlite3
        import pyarrow.dataset as ds

        def rows():
            stored = ds.dataset("archive", format="parquet").to_table().to_pylist()
            with sqlite3.connect("shop.db") as db:
                return [*stored, *[dict(zip(("id", "shop", "euros"), row)) for row in db.execute("SELECT * FROM orders")]]
        """,
    ),
    "trident delta": Job(
        "`exactly_once` on Delta",
        _KEPT_JOB,
        _ROWS,
        shown=_KEPT.format(package="delta", state="DeltaState", where='"kept"'),
    ),
    "trident redis": Job(
        "`exactly_once` on Redis",
        _KEPT_JOB,
        _ROWS,
        shown=_KEPT.format(package="redis", state="RedisState", where='os.environ["SHOP_REDIS"]'),
    ),
    "trident states": Job(
        "`topology.foreach_batch` with two states: Delta, and PostgreSQL fed by the new totals",
        _KEPT_JOB,
        _ROWS,
        shown="""
        import os
        from states.delta import DeltaState
        from states.postgres import PostgresState
        from trident import QueryBatches, TridentTopology, open_states
        from trident.operations import Count, Sum

        topology = TridentTopology("shop")
        orders = topology.new_stream("orders", QueryBatches("id: string, shop: string, euros: bigint"))
        totals = orders.group_by("shop").persistent_aggregate(DeltaState.opaque("kept"), "euros", Sum(), "total")
        large = totals.new_values_stream().filter("total", lambda total: total > 9).group_by("shop")
        large.persistent_aggregate(PostgresState.opaque(os.environ["SHOP_POSTGRES"]), Count(), "times")
        add = topology.foreach_batch()

        def rows():
            with open_states(topology, "total", "times") as states:
                return states.read(lambda at: [{"shop": f"{name} {shop}", "value": value}
                                               for name, state in at.items() for shop, value in state.get_tuples()])
        """,
    ),
}
"""Jobs that are exact: what `trident crashtest` finds wrong in them is a false alarm."""

WRONG = {
    "added in place": Job(
        "SQLite: sums are added in a transaction, which does not know of batches",
        """
        def add(batch, batch_id):
            found = totals(batch)
            with sqlite3.connect("shop.db") as db:
                db.execute(TABLE)
                for pair in found:
                    db.execute(ADD, pair)

        run(add)
        """,
    ),
    "appended": Job(
        "Parquet: batches are appended",
        """
        def append(batch, batch_id):
            batch.write.mode("append").parquet("sold")

        run(append)
        """,
        "sold",
        "id",
    ),
    "redis pipeline": Job(
        "Redis: a pipeline of increments",
        """
        import redis

        server = redis.Redis.from_url(os.environ["SHOP_REDIS"])

        def add(batch, batch_id):
            with server.pipeline() as pipeline:
                for shop, total in totals(batch):
                    pipeline.hincrby("totals", shop, total)
                pipeline.execute()

        run(add)
        """,
        _ROWS,
        shown=_REDIS_SHOWN,
    ),
    "noted afterwards": Job(
        "PostgreSQL: the number of the batch is noted in a transaction behind the one that adds",
        """
        import psycopg

        db = psycopg.connect(os.environ["SHOP_POSTGRES"], autocommit=True)
        db.execute(TABLE)
        db.execute("CREATE TABLE IF NOT EXISTS done (batch bigint PRIMARY KEY)")

        def add(batch, batch_id):
            if not db.execute("SELECT 1 FROM done WHERE batch = %s", (batch_id,)).fetchone():
                with db.transaction():
                    db.cursor().executemany(ADD.replace("?", "%s"), [*totals(batch)])
                db.execute("INSERT INTO done VALUES (%s)", (batch_id,))

        run(add)
        """,
        "postgresql",
        by_line=True,
    ),
}
"""Public patterns of sinks that count twice: what `trident crashtest` does not find wrong in them it has missed."""

_RESET = """
import os

if "SHOP_POSTGRES" in os.environ:
    import psycopg

    with psycopg.connect(os.environ["SHOP_POSTGRES"]) as db:
        db.execute("DROP SCHEMA public CASCADE")
        db.execute("CREATE SCHEMA public")
if "SHOP_REDIS" in os.environ:
    import redis

    redis.Redis.from_url(os.environ["SHOP_REDIS"]).flushdb()
"""


def server_of(job: Job) -> list[str]:
    """Return the variables with addresses of servers that a job reads: `SHOP_REDIS`, `SHOP_POSTGRES`."""
    return [name for name in ("SHOP_REDIS", "SHOP_POSTGRES") if name in job.code + job.shown]


def crash(job: Job, folder: Path, python: str, moments: Sequence[KillMoment]) -> CrashReport:
    """Write the job into a folder and test it at each of the moments once, or before each line."""
    kills = 6 if job.by_line else len(moments)
    moments = [KillMoment.line] if job.by_line else moments
    (folder / "orders").mkdir(parents=True)
    for number, rows in enumerate(_ORDERS):
        lines = [json.dumps(dict(zip(("id", "shop", "euros"), row, strict=True))) for row in rows]
        (folder / "orders" / f"{number}.json").write_text("\n".join(lines), encoding="utf-8")
    (folder / "job.py").write_text(_HEAD + textwrap.dedent(job.code), encoding="utf-8")
    (folder / "shown.py").write_text(textwrap.dedent(job.shown), encoding="utf-8")
    (folder / "reset.py").write_text(_RESET, encoding="utf-8")
    named = table_named(f"{os.environ['SHOP_POSTGRES']}?table=totals" if job.table == "postgresql" else job.table)
    servers = server_of(job)
    return CrashTest(
        [python, "job.py"],
        folder,
        named,
        Comparison([job.key] if job.key else [], job.ignored),
        f"{python} reset.py" if servers else "",
        named.database or "",
        kills,
        moments,
        seed=1,
    ).run()
