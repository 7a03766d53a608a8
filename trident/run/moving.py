"""Rows of a state are written again while no driver runs: moved, migrated to the declared type, or forgotten for good.

`move_state`: the rows are written as they are stored: value, value before, batch and attempt. So under the same log they mean
the same, in the middle of a batch that failed as well. What is there is not written again: the same call goes on after a kill.

    the target's sentinels are of an incarnation "(moving)"     no start and no reader takes it, another move is refused
    the rows, some thousand a commit; then both places are compared, row by row
    the target's sentinels are of the log's incarnation, by an attempt of an epoch that the log does not know: still no start
    the log's record of the layout, which knows this attempt    the state is in its new place now
    the source's sentinels are of an incarnation "(moved to …)" the former declaration is refused by name

The others are commits of the next batch that are fenced as failed attempts of it would be: it starts from what is there. A
migration leaves value and value before the same, so that it is right whichever counts; the attempt says that it is of the
declared type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from typing import Any

from trident.config import Config
from trident.errors import (
    ConfigError,
    StateError,
    StateReadError,
    TopologyChangedError,
    TopologyError,
    UnsupportedOperation,
    WrongKeyError,
)
from trident.graph import Graph, JoinWithinNode, PersistNode, StateNode, WindowNode
from trident.log import log_address
from trident.log.log_interface import TransactionLog
from trident.log.records import DiscardRecord, LayoutRecord, StartRecord, TopologyRecord
from trident.plan import Plan, make_plan
from trident.plan.evolution import MOVED_FROM, OF_ITS_FORM, REWRITTEN, STORED_AS
from trident.plan.meaning import Meaning, TopologyChanges, compare, meaning_of, with_kept_options
from trident.read.open_partitions import Conversion, graph_to_read, make_state, with_evolutions
from trident.read.state_reader import ForeignLog, log_place
from trident.run.dead_letters import dead_letters_of, ranges_by_batch
from trident.run.recovery import NewMeaning, check_meaning, empty, lay, owning
from trident.state.encoding.equal_keys import declared_keys, keys_of_list, typed_keys
from trident.state.interfaces import Key, State
from trident.state.map_commits import CommittedMap
from trident.state.map_state import SnapshottableMap
from trident.state.maps import migrate_values
from trident.state.sentinel import compare_stores, is_foreign, move_note, with_note
from trident.state.txid import CHANGES, FORMER, RETRY_BITS, STORED_UNDER, Sentinel, Txid, Winners, epoch_of
from trident.steps.key_columns import partition_of_total, partitions_of

Progress = Callable[[str, int, int], None]
"""Called with what is being done (`count`, `copy`, `compare`), how many rows are done, and of how many (0: not known yet)."""

_ROWS = 10_000  # of one commit
_MOVING, _REMAINS = "moving", "as the store keeps what was deleted"
_OF_THE_PLACE = (FORMER, STORED_AS, STORED_UNDER)  # the facts of a state that say how it is stored where it is


@dataclass(frozen=True)
class Moved:
    """A move that has ended.

    `txid`: the batch up to which the state was moved.
    `rows`: how many rows it has; None if an earlier call had moved them.
    `written`: how many of them this call wrote; the others were there.
    """

    txid: int
    rows: int | None = None
    written: int = 0


@dataclass(frozen=True)
class Forgotten:
    """What `forget_keys` has done.

    `keys`: how many of the keys had a row.
    `letters`: how many dead letters named one of them, and are gone.
    `remains`: where the store itself still has what was deleted, and until when.
    """

    keys: int
    letters: int
    remains: str


def move_state(
    source: Graph, target: Graph, name: str, to: str, config: Config, progress: Progress = lambda *_: None
) -> Moved:
    """Move a state between two declarations of its topology; see `trident.move_state`. `to`: how the new one is called."""
    if source.name != target.name:
        raise TopologyError(
            f"move state {name!r}: the declarations are of two topologies, {source.name!r} and {target.name!r}; a state is "
            "moved between two declarations of one topology, under its log"
        )
    states = [source.state(name), target.state(name)]
    with _held_log(source.name, states, config, "Move it to a store") as (log, opened):
        compared = _compare_with_log(log, target, name)
        known = log.state.declared.get("states", {}).get(name, {})
        was = {**known, **known.get(MOVED_FROM, {})}  # of a move that goes on the log may know the end
        source = graph_to_read(source, {"states": {name: was}} if was else {})
        left, new = (Side(make_plan(graph), name, config, opened) for graph in (source, target))
        return _Move(log, left, new, compared, to, progress).run()


def migrate_state(graph: Graph, name: str, config: Config, progress: Progress = lambda *_: None) -> Moved:
    """Migrate all values of a state that are of former types; see `trident.migrate_state`."""
    with _opened_place(graph, name, config, "migrate") as (log, place, compared):
        if name not in compared.evolutions:
            return Moved(log.state.txid, 0, 0)
        attempts = _begin_to_write(log, name, place)
        meaning = NewMeaning(log, Meaning({name: compared.recorded.states[name]}, {}), [name])
        if meaning.lasts:
            meaning.record()
        state, rows, written = log.state, 0, 0
        winners = state.winners_of(name)
        for keys in place.pages() if winners.types else ():
            stored = place.stored_rows(keys)
            former = [key for key, one in stored.items() if one.attempt < winners.types[-1][0]]
            for one, _, some, commit in _commits(log, name, place, former, attempts):
                one.begin_commit(commit)
                one.multi_put(some, one.multi_get(some))
                one.commit(commit)
            rows, written = rows + len(stored), written + len(former)
            progress("migrate", rows, 0)
        facts = dict(state.declared["states"][name])
        if facts.pop(FORMER, None):
            log.append(TopologyRecord({name: {**facts, REWRITTEN: state.txid}}, {}))
        return Moved(state.txid, rows, written)


def forget_keys(graph: Graph, name: str, keys: Sequence[object], config: Config) -> Forgotten:
    """Remove keys of a state for good; see `trident.forget_keys`."""
    node = graph.state(name)
    given = keys_of_list(keys, name)
    if not len(node.key_fields) and not node.free_keys:
        raise UnsupportedOperation(f"forget keys of state {name!r}: it holds a single value, and no keys")
    wanted = [key for key in declared_keys(given, node.key_fields, name) if key is not None]
    if len(wanted) < len(given):
        raise WrongKeyError(
            f"forget {list(given)} of state {name!r}: not all of them can be its keys ({node.key_fields})"
        )
    with _opened_place(graph, name, config, "forget keys of") as (log, place, _):
        if not place.maps[0].backing.offers("multi_delete"):
            raise UnsupportedOperation(f"forget keys of state {name!r}: its store cannot delete keys")
        attempts, there = _begin_to_write(log, name, place), len(place.stored_rows(wanted))
        for one, backing, some, commit in _commits(log, name, place, wanted, attempts):
            one.begin_commit(commit)
            backing.multi_delete(some)
            one.commit(commit)
            if backing.facts.kept_changes is not None:
                backing.facts.kept_changes.forget(some)
        letters = dead_letters_of(config, graph.name)
        if given_up := letters.waiting_for(log.state, wanted):  # before their lines go, or they would wait for ever
            log.append(DiscardRecord(ranges_by_batch(given_up), "forgotten"))
    return Forgotten(there, letters.forget(wanted), node.spec.facts.remains or _REMAINS)


def _begin_to_write(log: TransactionLog, name: str, place: StatePlace) -> Iterator[int]:
    """Record that a driver writes what the log expects of a state; return the attempts of its commits."""
    compare_stores(name, place.states, lambda: log.state)
    log.append(StartRecord.now(log.epoch, log.state.executors))
    return count((log.epoch << RETRY_BITS) + 1)


def _commits(
    log: TransactionLog, name: str, place: StatePlace, keys: Sequence[Key], attempts: Iterator[int]
) -> Iterator[tuple[Any, Any, list[Key], Txid]]:
    """Iterate over the partitions that have some of the keys, their maps, these keys, and the txids to commit them with."""
    for partition, some in place.by_partition(keys).items() if keys else ():
        commit = log.state.commits(name, len(place.states), attempt=next(attempts))[partition]
        yield place.states[partition], place.maps[partition].backing, some, commit


@contextmanager
def _held_log(
    topology: str, states: Sequence[StateNode], config: Config, remedy: str
) -> Iterator[tuple[TransactionLog, ExitStack]]:
    """Hold the log of a topology, so that no driver runs; `LogHeldError` if one does. States are closed with it."""
    ForeignLog(topology, config, states, remedy).close()
    with ExitStack() as opened:
        log = log_address.open_log(log_place(topology, config), topology, config.takeover)
        opened.callback(log.close)
        with owning(log):
            yield log, opened


class Side:
    """A declaration of a state: opens the partitions where it has them."""

    def __init__(self, plan: Plan, name: str, config: Config, opened: ExitStack) -> None:
        self.plan, self.name, self._config, self._opened = plan, name, config, opened
        self.partitions, self.node = plan.partitions[name], plan.states[name]

    def open(self, partitions: int, read_only: bool) -> StatePlace:
        states = []
        for partition in range(partitions):
            states.append(make_state(self.plan, self._config, self.name, partition, partitions, read_only))
            self._opened.callback(states[-1].close)
        own = [node for node in self.plan.commits if isinstance(node, PersistNode) and node.state == self.name]
        # Windows and joins keep tuples, under keys that no aggregate writes.
        is_hashed = not (self.node.free_keys or isinstance(own[0], (WindowNode, JoinWithinNode)))
        return StatePlace(self.node, is_hashed, states)


@contextmanager
def _opened_place(
    graph: Graph, name: str, config: Config, doing: str
) -> Iterator[tuple[TransactionLog, StatePlace, TopologyChanges]]:
    """Open a state to be written where its topology has it, under its log; also how it differs from that."""
    with _held_log(graph.name, [graph.state(name)], config, "Keep it in a store") as (log, opened):
        graph = with_kept_options(graph, log.state.declared.get("states", {}))
        if name not in log.state.layouts:
            raise StateError(f"{doing} state {name!r}: topology {graph.name!r} has committed nothing to it yet")
        compared = check_meaning(graph.name, log, meaning_of(graph), config.allow_changed_topology)
        side = Side(with_evolutions(make_plan(graph), compared.evolutions), name, config, opened)
        yield log, side.open(log.state.layouts[name][0], read_only=False), compared


class StatePlace:
    """The opened partitions of a state; `UnsupportedOperation` if they are no maps whose keys can be listed."""

    def __init__(self, node: StateNode, is_hashed: bool, states: Sequence[State]) -> None:
        self.states, self.maps = states, [_map_of(node.name, state) for state in states]
        first = states[0]
        self.total: Key | None = None  # the key of a single value
        if not len(node.key_fields) and isinstance(first, SnapshottableMap):
            self.total = first.snapshot_key
        self._shares = self.maps[0].facts.shares_keys
        if not is_hashed and len(states) > 1 and not self._shares:
            raise UnsupportedOperation(
                f"move state {node.name!r}: each of its {len(states)} partitions has a place of its own, and the keys are not "
                "those of an aggregate, so nothing says to which of them a key belongs"
            )

    def by_partition(self, keys: Sequence[Key]) -> dict[int, list[Key]]:
        """Return keys by the partition that keeps them; where all share a place it is the first."""
        if self._shares:
            return {0: list(keys)}
        if self.total is not None:
            return {partition_of_total(len(self.maps)): list(keys)}
        return {
            partition: [keys[at] for at in places] for partition, places in partitions_of(keys, len(self.maps)).items()
        }

    def pages(self) -> Iterator[list[Key]]:
        """Iterate over all keys, some at a time, as a dict must have them."""
        for partition in range(1 if self._shares else len(self.maps)):
            listed = chain.from_iterable(self.maps[partition].key_pages())
            while some := list(islice(listed, _ROWS)):
                # partitions may each list the keys of all
                yield list(typed_keys(self.by_partition(some).get(partition, [])))

    def stored_rows(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """Return what is stored for keys, as it is; absent keys are left out."""
        found: dict[Key, Any] = {}
        for partition, some in self.by_partition(keys).items():
            stored = self.maps[partition].past_caches.multi_get(some)
            found.update((key, one) for key, one in zip(some, stored, strict=True) if one is not None)
        return found


def _map_of(name: str, state: State) -> CommittedMap:
    found = state.inner if isinstance(state, SnapshottableMap) else state
    if isinstance(found, CommittedMap) and found.backing.offers("key_pages"):
        return found
    of = found.backing if isinstance(found, CommittedMap) else found.given
    raise UnsupportedOperation(
        f"move state {name!r}: a {type(of).__name__} is not a map that can list its keys, as the ones in Delta, Redis, "
        "PostgreSQL and Cassandra can"
    )


class _Move:
    """One call of `move_state`, which holds the log."""

    def __init__(
        self, log: TransactionLog, source: Side, target: Side, compared: TopologyChanges, to: str, progress: Progress
    ) -> None:
        self._log, self._name, self._to, self._progress = log, source.name, to, progress
        self._sides = source, target
        self._target = target.open(target.partitions, read_only=False)
        self._txid, self._attempt = log.state.txid, log.epoch << RETRY_BITS
        means, evolution = compared.recorded.states[self._name], compared.evolutions.get(self._name)
        known = log.state.declared.get("states", {}).get(self._name, {})
        self._means = {fact: value for fact, value in means.items() if fact not in (CHANGES, *_OF_THE_PLACE)}
        if left := {fact: known[fact] for fact in _OF_THE_PLACE if fact in known}:
            self._means[MOVED_FROM] = left
        self._migration = None if evolution is None else Conversion(replace(target.node, evolution=evolution))
        self._laid: list[Sentinel] = []
        self._written, self._resumes = 0, False

    def run(self) -> Moved:
        found = [state.read_sentinel() for state in self._target.states]
        if self._is_there(found):
            self._mark_source(self._sides[0].partitions)
            return Moved(self._txid)
        log = self._log.state
        source = self._sides[0].open(log.layouts[self._name][0], read_only=True)
        compare_stores(self._name, source.states, lambda: log)
        keep = [place.states[0].facts.keeps_attempts() for place in (source, self._target)]
        if keep[0] and not keep[1]:
            raise UnsupportedOperation(
                f"move state {self._name!r}: the target's serializer does not store which attempt wrote a value, so what a "
                "failed one wrote would count there; give the new declaration another serializer"
            )
        self._claim_target(found)
        total = 0
        for keys in source.pages():
            total += len(keys)
            self._progress("count", total, 0)
        self._over_rows("copy", source, total, self._copy)
        self._verify(source, total)
        self._finish()
        self._mark_source(len(source.states))
        return Moved(self._txid, total, self._written)

    def _is_there(self, found: Sequence[Sentinel | None]) -> bool:
        """Whether only the source has yet to be marked; `ConfigError` if source and target are one place."""
        log, source = self._log.state, self._sides[0].open(self._sides[0].partitions, read_only=True)
        if found[0] is not None and found[0] == source.states[0].read_sentinel():
            raise ConfigError(
                f"move state {self._name!r}: both declarations have it in the same place. Another number of partitions needs "
                "no move: start the topology with it. For another layout, give the new one another table, prefix or path"
            )
        expected = [log.expected_sentinel(self._name, partition) for partition in range(len(found))]
        if log.layouts[self._name][0] != len(found) or None in expected:
            return False
        try:
            compare_stores(self._name, self._target.states, lambda: log)  # a driver may have died in a commit since
        except StateReadError:
            return False
        return True

    def _claim_target(self, found: Sequence[Sentinel | None]) -> None:
        """Note in each partition that it is being filled, if all are empty or were being filled."""
        own = list(filter(self._is_of_move, filter(None, found)))
        others = [sentinel for sentinel in filter(None, found) if sentinel not in own]
        if others or (not own and any(self._target.pages())):
            what = f"it has {others[0]} of {others[0].place!r}" if others else "it has keys"
            remedy = "give the new declaration another table, prefix or path"
            if not others or not is_foreign(others[0], self._target.states[0].place):
                remedy += "; or, if nothing needs what is there any more, empty it by the store's own means"
            raise StateError(
                f"move state {self._name!r} to {self._to}: the place is not empty, {what}. Nothing was written. To do: {remedy}"
            )
        self._resumes = {sentinel.txid for sentinel in own} == {self._txid}
        for state in self._target.states if own and not self._resumes else ():
            empty(self._log, state)  # it is of a batch before: keys may have been removed since
        self._attempt += 1
        for state in self._target.states:
            self._laid.append(Sentinel(with_note(self._log.state.incarnation, _MOVING), self._txid, self._attempt))
            state.read_sentinel()
            lay(self._log, state, self._laid[-1])

    def _is_of_move(self, found: Sentinel) -> bool:
        """Whether a move of this state under this log left a sentinel: at work, or before the log knew of its end."""
        log = self._log.state
        is_end = found.incarnation == log.incarnation and epoch_of(found.attempt) not in log.epochs
        is_own = found.place == self._target.states[0].place
        return is_own and (is_end or move_note(found, log.incarnation) == _MOVING)

    def _over_rows(self, what: str, source: StatePlace, total: int, do: Callable[[dict[Key, Any]], None]) -> int:
        done = 0
        for keys in source.pages():
            rows = source.stored_rows(keys)
            if self._migration is not None:
                stored: Sequence[Any] = migrate_values([*rows.values()], Winners(), self._migration)
                for key, row in zip(rows, stored, strict=True):
                    prev, curr = self._migration.narrow([row.prev, row.curr])  # without fields that only others declare
                    rows[key] = row._replace(prev=prev, curr=curr)
            if (total_key := self._target.total) is not None:  # a single value may have another key there
                rows = {total_key if key == source.total else key: row for key, row in rows.items()}
            do(rows)
            done += len(rows)
            self._progress(what, done, total)
        return done

    def _copy(self, rows: dict[Key, Any]) -> None:
        """Write those rows that the target does not have, each partition's in one commit."""
        there = self._target.stored_rows(list(rows)) if rows and self._resumes else {}
        keys = [key for key, row in rows.items() if not _is_same(row, there.get(key))]
        for partition, some in self._target.by_partition(keys).items() if keys else ():
            self._attempt += 1
            before, winners = self._laid[partition], self._log.state.winners_of(self._name)
            commit = Txid(self._txid, self._attempt, winners, before.incarnation)
            self._target.maps[partition].put_stored(commit, some, [rows[key] for key in some])
            self._laid[partition] = before._replace(attempt=self._attempt)
            self._written += len(some)

    def _verify(self, source: StatePlace, total: int) -> None:
        """Read both places again, the target through readers of its own, and compare each row."""
        target = self._sides[1].open(len(self._laid), read_only=True)

        def compare(rows: dict[Key, Any]) -> None:
            there = target.stored_rows(list(rows)) if rows else {}
            for key, row in rows.items():
                if not _is_same(row, there.get(key)):
                    raise self._differs(f"{key!r} is {row!r} in the one and {there.get(key)!r} in the other")

        compared = self._over_rows("compare", source, total, compare)
        copied = sum(map(len, target.pages()))
        if not total == compared == copied:
            raise self._differs(f"{total} keys were to be moved, {compared} were compared, {copied} are in the target")
        compare_stores(self._name, source.states, lambda: self._log.state)

    def _differs(self, how: str) -> StateError:
        return StateError(
            f"move state {self._name!r} to {self._to}: after the copy the two places differ: {how}. Something else writes to "
            "one of them; end it, and run the command again. With its former declaration the topology goes on as before"
        )

    def _finish(self) -> None:
        """Lay the sentinels that the log is going to expect, and record it: from this record on the state is in the target."""
        self._attempt += 1
        for state in self._target.states:
            lay(self._log, state, Sentinel(self._log.state.incarnation, self._txid, self._attempt))
        kind = self._log.state.layouts[self._name][1]
        self._log.append(LayoutRecord(self._name, len(self._laid), kind, self._attempt, self._means))

    def _mark_source(self, partitions: int) -> None:
        mark = Sentinel(with_note(self._log.state.incarnation, f"moved to {self._to}"), self._txid, self._attempt)
        for state in self._sides[0].open(partitions, read_only=False).states:
            state.read_sentinel()
            lay(self._log, state, mark)


def _compare_with_log(log: TransactionLog, graph: Graph, name: str) -> TopologyChanges:
    """Compare a declaration of the state with the log; refuse a state that nothing was committed to, and another meaning."""
    if name not in log.state.layouts or not log.state.txid:
        raise StateError(
            f"move state {name!r}: topology {graph.name!r} has not committed anything yet; start it with its new declaration"
        )
    now = meaning_of(graph)
    states = log.state.declared.get("states", {})
    # Rows are written again, a single value under another key.
    facts = {fact: value for fact, value in states.get(name, {}).items() if fact not in OF_ITS_FORM}
    known = Meaning({name: facts} if facts else {}, {})
    compared = compare(
        known,
        Meaning({name: now.states[name]}, {}, now.rename, now.migrating),
        log.epoch << RETRY_BITS,
        log.state.txid + 1,
    )
    if compared.refused:
        raise TopologyChangedError(graph.name, compared.refused)
    return compared


def _is_same(one: Any, other: Any) -> bool:
    return one == other or repr(one) == repr(other)  # NaN is not equal to itself
