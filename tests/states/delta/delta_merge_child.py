"""Commits through Spark beside the same commits in process; run as a program, because it needs a session of its own."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from states.delta import DeltaMapState, merge_dataframe
from states.delta.spark_rule import by_rule
from tests.states.delta.delta_states import WORDS, Log, add, commit, spark_with_delta, state_at, update, version_of
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Snapshot, Txid
from trident.state.values import UNKNOWN_ATTEMPT, CombinerValueUpdater, OpaqueValue
from trident.state.winners import Winners


def say(**facts: Any) -> None:
    sys.stdout.write("FACTS " + json.dumps(facts) + "\n")
    sys.stdout.flush()


def partials(spark: SparkSession, counts: dict[str | None, int]) -> DataFrame:
    return spark.createDataFrame(list(counts.items()), "word: string, value: bigint")


def contents(path: Path, kind: StateType) -> Any:
    state = state_at(path, kind=kind)
    keys = sorted((key for page in state.key_pages() for key in page), key=str)
    return [str(state.read_sentinel()), [(key, tuple_of(v)) for key, v in zip(keys, stored(state, keys), strict=True)]]


def stored(state: DeltaMapState, keys: list[Any]) -> list[Any]:
    backing: Any = state.map_state
    return list(backing.backing.multi_get(keys))


def tuple_of(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def history(spark: SparkSession, folder: Path, kind: StateType, seed: int) -> None:
    """Random batches with lost attempts; on one table all in process, on the other some of them through Spark."""
    dice, log, attempt = random.Random(seed), Log(), 1
    local, mixed = folder / f"local-{seed}", folder / f"mixed-{seed}"
    words: list[str | None] = ["a", "b", "c", None, "e"]
    for number in range(1, 4):
        content = {word: dice.randrange(1, 9) for word in dice.sample(words, 3)}
        while True:
            won = dice.random() < 0.6
            if kind is StateType.OPAQUE:  # only an opaque state bears a replay of another content
                content = {word: dice.randrange(1, 9) for word in dice.sample(words, 3)}
            counts: Any = content
            commit(state_at(local, kind=kind), log, number, attempt, counts, record=False)
            if dice.random() < 0.6:
                merge_dataframe(partials(spark, counts), mixed, log.txid(number, attempt), "count", WORDS, kind)
            else:
                commit(state_at(mixed, kind=kind), log, number, attempt, counts, record=False)
            if won:
                log.record(log.txid(number, attempt))
                break
            attempt += 1
    say(**{f"{kind.value} in process": contents(local, kind), f"{kind.value} mixed": contents(mixed, kind)})
    say(**{f"{kind.value} attempts": attempt})


def lost_attempt(spark: SparkSession, folder: Path) -> None:
    """The worked example of an opaque state: "dog" is in an attempt that lost, and not in its replay."""
    path, log = folder / "lost", Log()
    commit(state_at(path), log, 1, 1, {"man": 3, "dog": 4})
    merge_dataframe(partials(spark, {"man": 1, "dog": 1}), path, log.txid(2, 1), "count", WORDS)
    commit(state_at(path), log, 2, 2, {"man": 2})
    merge_dataframe(partials(spark, {"man": 1, "dog": 1}), path, log.txid(3, 2), "count", WORDS)
    say(lost=contents(path, StateType.OPAQUE)[1])


def refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - which it is, is what the test asks
        return f"{type(error).__name__}: {error}"
    return "nothing"


def errors(spark: SparkSession, folder: Path) -> None:
    path, log = folder / "errors", Log()
    state = state_at(path)
    commit(state, log, 1, 1, {"man": 1})
    twice = partials(spark, {"man": 1}).unionAll(partials(spark, {"man": 1}))
    say(twice=refused(lambda: merge_dataframe(twice, path, log.txid(2, 1), "sum", WORDS)))
    say(unknown=refused(lambda: merge_dataframe(twice, path, log.txid(2, 1), "median", WORDS)))
    say(untyped=refused(lambda: merge_dataframe(twice, path, log.txid(2, 1), "sum", StateConf())))
    plain = folder / "plain"
    commit(state_at(plain), Log(), 7, 1, {"man": 1})
    say(stale=refused(lambda: merge_dataframe(partials(spark, {"man": 1}), plain, Txid(5), "sum", WORDS)))
    foreign = Txid(2, 1, log.winners, "another", None)
    say(foreign=refused(lambda: merge_dataframe(partials(spark, {"man": 1}), path, foreign, "sum", WORDS)))
    say(version=version_of(path))


def overtaken(spark: SparkSession, folder: Path) -> None:
    """Somebody commits while Spark works: the plan itself does it, when it is made."""
    for name, attempt in (("fenced", 2), ("refused", 1), ("compacted", None)):
        path, log = folder / name, Log()
        commit(state_at(path), log, 1, 1, {"man": 1})
        commit(state_at(path), log, 2, 1, {"man": 1})

        def meanwhile(stored: Any, partial: Any, path: Path = path, log: Log = log, attempt: Any = attempt) -> Any:
            if attempt is None:
                state = state_at(path, compact_after_commits=1, background_maintenance=False)
                state.map_state.backing._maintenance.run(compact=True, checkpoint=False)
            else:
                commit(state_at(path), log, 3, attempt, {"man": 50}, record=False)
            return stored + partial

        own = log.txid(3, 1 if attempt == 2 else 2)
        call = lambda own=own, meanwhile=meanwhile, path=path: merge_dataframe(  # noqa: E731 - one call, twice named
            partials(spark, {"man": 5}), path, own, meanwhile, WORDS
        )
        say(**{name: refused(call), f"{name} value": state_at(path).multi_get([("man",)])})


def rule(spark: SparkSession) -> None:
    """The value rule in Spark beside the one rule, for stored values and winners of all kinds."""
    dice, shape = (
        random.Random(7),
        "at: int, _stored: struct<txid: bigint, attempt: bigint, prev: bigint, curr: bigint>",
    )
    heads = [(txid, attempt) for txid in range(1, 8) for attempt in (UNKNOWN_ATTEMPT, 1, 2, 3)]
    found = [OpaqueValue(*head, *dice.choices([None, 1, 2, 3], k=2)) for head in heads]
    rows = spark.createDataFrame([*enumerate(map(tuple, found)), (len(found), None)], shape)
    rows = rows.select("at", "_stored", sf.lit(10).cast("bigint").alias("_partial"))
    wrong, asked = [], 0
    for _ in range(12):
        starts = sorted(dice.sample(range(1, 8), dice.randrange(4)))
        winners = Winners(tuple((start, dice.randrange(1, 4)) for start in starts), dice.randrange(4))
        for txid in (Txid(dice.randrange(1, 8), 3, winners), Txid(4, 3)):
            columns = by_rule(StateType.OPAQUE, "bigint", txid, lambda stored, partial: stored + partial)
            made = {row[0]: tuple(row)[1:5] for row in rows.select("at", *columns).collect()}
            bases = [None if one is None else one.at(Snapshot(txid - 1, txid.winners)) for one in [*found, None]]
            for at, base in enumerate(bases):
                asked += 1
                expected = (int(txid), 3, base, 10 if base is None else base + 10)
                if made[at] != expected:
                    wrong.append([at, str(winners), int(txid), made[at], expected])
    say(rule=wrong, asked=asked)


def types(spark: SparkSession, folder: Path) -> None:
    import datetime as dt
    from decimal import Decimal

    fields = (("at", "timestamp"), ("curr", "date"))
    conf = StateConf("t", "s", fields, "decimal(12,2)")
    at, day = dt.datetime(2024, 1, 1, 12, 0, 0, 1, tzinfo=dt.UTC), dt.date(2024, 2, 29)
    rows = spark.createDataFrame([(at, day, Decimal("1.50"))], "at: timestamp, curr: date, value: decimal(12,2)")
    path = folder / "types"
    state = state_at(path, conf)
    state.begin_commit(1)
    state.multi_update([(at, day)], [CombinerValueUpdater(lambda a, b: a + b, Decimal("2.25"))])
    state.commit(1)
    merge_dataframe(rows, path, 2, "max", conf)
    merge_dataframe(rows, path, 3, "sum", conf)
    say(types=[str(value) for value in state_at(path, conf).multi_get([(at, day)])])


def frames(spark: SparkSession, folder: Path) -> None:
    path, log = folder / "frames", Log()
    state = state_at(path)
    commit(state, log, 1, 1, {"man": 1, "dog": 2})
    removal = log.txid(2, 1)
    state.begin_commit(removal)
    update(state, {"man": 4})
    state.multi_remove([("dog",)])
    state.commit(removal)
    frame = state.to_dataframe(spark)
    say(schema=frame.schema.simpleString(), frame=sorted(map(list, frame.collect())))
    say(staging=[str(found) for found in folder.glob("*/_trident_staging/*")])


def main(folder: Path) -> None:
    assert add(1, 1) == 2
    spark = spark_with_delta()
    for seed, kind in enumerate([StateType.OPAQUE, StateType.TRANSACTIONAL]):
        history(spark, folder, kind, seed)
    lost_attempt(spark, folder)
    errors(spark, folder)
    overtaken(spark, folder)
    rule(spark)
    types(spark, folder)
    frames(spark, folder)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
