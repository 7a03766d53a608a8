"""Where log and states are in one database, a batch's writes and its record are one transaction."""

import itertools
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from states.postgres import PostgresState
from tests.harness.proxy import Proxy
from tests.states.postgres.postgres_states import Home, numbers
from trident import TridentTopology
from trident.config import Config
from trident.errors import BatchFailedError, FencedError
from trident.log.log_address import open_log
from trident.operations import Count, MapGet
from trident.plan import make_plan
from trident.run.placements import why_apart
from trident.run.running import start
from trident.spout.interfaces import TransactionAttempt

BATCHES = 12


class Counts:
    """A topology that counts words in one state, or in two, beside its log."""

    def __init__(self, home: Home, port: int = 0, states: int = 1, **options: Any) -> None:
        self.home, self.name, self.states = home, f"one{next(numbers)}", states
        self.url = home.url.replace(str(home.port), str(port or home.port))
        self.options = options

    def start(self, observe: Callable[[str, TransactionAttempt], None] | None = None, **config: Any) -> Any:
        topology, words = TridentTopology(self.name), [("the",), ("cow",)]
        stream = topology.new_stream("words", FixedBatchSpout("word: string", 2, *(words * BATCHES)))
        for number in range(self.states):
            spec = PostgresState.opaque(self.url, table=f"{self.name}-{number}", **self.options)
            stream.group_by("word").persistent_aggregate(spec, Count(), "count", state_name=f"counts{number}")
        settings = {
            "engine": "in_process",
            "log_dir": f"{self.url}?topology={self.name}",
            "retry_backoff_ms": 0,
            **config,
        }
        return start(topology.graph(), Config(**settings), None, observe)

    def counts(self) -> list[Any]:
        tables = [f'SELECT word, count FROM "{self.name}-{at}"' for at in range(self.states)]
        return sorted(self.home.sql(" UNION ALL ".join(tables)))

    def batches(self) -> int:
        ((txid,),) = self.home.sql(f"SELECT txid FROM trident_log_heads WHERE topology = '{self.name}'")
        return int(txid)


@pytest.mark.parametrize("states", [1, 2])
def test_states_and_record_are_written_by_one_transaction(home: Home, states: int) -> None:
    counts = Counts(home, states=states)
    with counts.start() as running:
        running.process_all_available()
        assert "the record of a batch: in one transaction with the states" in running.explain()
        assert running.status["failures"] == 0
    assert counts.counts() == [("cow", BATCHES)] * states + [("the", BATCHES)] * states
    writers = " UNION ALL ".join(f'SELECT xmin::text FROM "{counts.name}-{at}"' for at in range(states))
    sentinel = f"SELECT xmin::text FROM trident_sentinels WHERE state LIKE '{counts.name}-%'"
    head = f"SELECT xmin::text FROM trident_log_heads WHERE topology = '{counts.name}'"
    assert len(home.sql(f"{writers} UNION {sentinel} UNION {head}")) == 1


@pytest.mark.sample(2)
@pytest.mark.parametrize("states", [1, 2])
@pytest.mark.parametrize("layout", ["columns", "binary"])
def test_answers_that_are_lost_at_every_batch_lose_and_double_nothing(
    home: Home, proxy: Proxy, states: int, layout: str
) -> None:
    counts, cut = Counts(home, proxy.port, states, layout=layout), list[str]()
    points: Iterator[Literal["reply", "half request", "held request"]]
    points = itertools.cycle(("reply", "half request", "held request"))

    def observe(step: str, _attempt: TransactionAttempt) -> None:
        if step == "committed":  # the record is next, with all that is left to it
            proxy.arm(next(points), lambda: cut.append(step))

    with counts.start(observe) as running:
        running.process_all_available()
        assert running.status["failures"] == 0
        found = {
            key: running.state(f"counts{at}").multi_get([(key,)]) for at in range(states) for key in ("the", "cow")
        }
    assert len(cut) == BATCHES
    assert counts.batches() == BATCHES
    assert found == {"the": [BATCHES], "cow": [BATCHES]}


@pytest.mark.parametrize("states", [1, 2])
def test_a_driver_replaced_while_its_transaction_is_on_the_way_writes_nothing(
    home: Home, proxy: Proxy, states: int
) -> None:
    counts = Counts(home, proxy.port, states)

    def take_over() -> None:
        open_log(f"{home.url}?topology={counts.name}", counts.name, takeover=True).close()

    def observe(step: str, attempt: TransactionAttempt) -> None:
        if (step, attempt.txid) == ("committed", 3):
            proxy.arm("held request", take_over)

    with pytest.raises(FencedError, match="epoch 2"), counts.start(observe) as running:
        running.process_all_available()
    assert not proxy.disarm()
    assert (counts.batches(), counts.counts()) == (2, [("cow", 2)] * states + [("the", 2)] * states)


@pytest.mark.parametrize("states", [1, 2])
def test_a_state_that_refuses_its_write_fails_the_batch_and_leaves_no_record(home: Home, states: int) -> None:
    counts = Counts(home, states=states)

    def observe(step: str, attempt: TransactionAttempt) -> None:
        if (step, attempt.txid) == ("committed", 2) and counts.batches() == 1:
            home.sql(f'ALTER TABLE "{counts.name}-{states - 1}" ADD CHECK (count < 2)')

    with pytest.raises(BatchFailedError, match="violates check constraint"), counts.start(observe) as running:
        running.process_all_available()
    assert (counts.batches(), counts.counts()) == (1, [("cow", 1)] * states + [("the", 1)] * states)
    name = home.sql(
        f"SELECT conname FROM pg_constraint WHERE conrelid = '\"{counts.name}-{states - 1}\"'::regclass AND contype = 'c'"
    )
    home.sql(f'ALTER TABLE "{counts.name}-{states - 1}" DROP CONSTRAINT "{name[0][0]}"')
    with counts.start() as running:
        running.process_all_available()
    assert (counts.batches(), counts.counts()[0]) == (BATCHES, ("cow", BATCHES))


def test_a_table_emptied_before_the_transaction_is_found_and_not_recorded(home: Home) -> None:
    counts = Counts(home)

    def observe(step: str, attempt: TransactionAttempt) -> None:
        if (step, attempt.txid) == ("committed", 3):
            home.sql(f'TRUNCATE "{counts.name}-0"')

    with pytest.raises(BatchFailedError, match="StateLossDetected: .* is gone"), counts.start(observe) as running:
        running.process_all_available()
    assert (counts.batches(), counts.counts()) == (2, [])


HERE = "postgresql://trident@db/shop"
LOG = f"{HERE}?topology=words"


def topology_of(*specs: Any, sees: Literal["batch_before", "this_batch"] = "batch_before") -> Any:
    topology = TridentTopology("words")
    stream = topology.new_stream("words", FixedBatchSpout("word: string", 1, ("the",)))
    for number, spec in enumerate(specs):
        words = stream.group_by("word").persistent_aggregate(spec, Count(), "count", state_name=f"count{number}")
        if sees != "batch_before":
            stream.state_query(words, "word", MapGet(), "n", sees=sees)
    return make_plan(topology.graph())


@pytest.mark.parametrize(
    ("plan", "log", "why"),
    [
        (partial(topology_of, PostgresState.opaque(HERE)), LOG, ""),
        (partial(topology_of, PostgresState.opaque(f"{HERE.replace('db', 'db:5432')}?sslmode=require")), LOG, ""),
        (partial(topology_of, PostgresState.opaque(HERE)), None, None),
        (partial(topology_of, MemoryMapState()), LOG, None),
        (partial(topology_of, PostgresState.opaque(HERE), MemoryMapState()), LOG, "is in another store than the log"),
        (partial(topology_of, PostgresState.opaque(HERE, num_partitions=2)), LOG, "has 2 partitions"),
        (partial(topology_of, PostgresState.opaque(HERE), sees="this_batch"), LOG, "sees its own batch"),
        (
            partial(topology_of, PostgresState.opaque("postgresql://me@db2/shop")),
            LOG,
            r"\(server db2:5432, not db:5432; user me, not trident\): give both the same address",
        ),
    ],
)
def test_why_states_and_record_are_transactions_of_their_own(plan: Any, log: str | None, why: str | None) -> None:
    found = why_apart(plan(), [], log or "trident-log")
    if why:
        assert found is not None
        assert re.search(why, found), found
    else:
        assert found == why
    assert why_apart(topology_of(PostgresState.opaque(HERE)), ["count0"], LOG) == (
        "executors commit state 'count0', and the driver the record"
    )
    assert why_apart(topology_of(PostgresState.opaque(HERE)), [], LOG, ["words"]) == (
        "spout 'words' commits to its source before the batch is recorded"
    )
