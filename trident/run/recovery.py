"""At start: do topology and log belong together, and log and stores (R8)? If not: refuse, rewind, keep or discard the totals.

All is compared before anything is written. Then, in this order: what the policy asks for; the record that this driver may
write; a claim on the place of each state that is new to the log, has other partitions, or keys that may come to any of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from trident.errors import (
    BackendError,
    FencedError,
    StateMismatchError,
    StateMovedError,
    StatePlaceError,
    TopologyChangedError,
    TridentError,
)
from trident.graph import Graph
from trident.log.log_interface import TransactionLog
from trident.log.log_state import LogState
from trident.log.records import AdoptRecord, LayoutRecord, RenameRecord, ResetRecord, StartRecord, TopologyRecord
from trident.plan import Plan
from trident.plan.evolution import goes_on
from trident.plan.meaning import READS, Meaning, TopologyChanges, compare, meaning_of, with_kept_options
from trident.plan.plan import spout_type_of
from trident.read.open_partitions import with_evolutions
from trident.run.accidents import Accidents, Found
from trident.run.placements import kinds_of
from trident.spout.interfaces import SaysWhereItBegins, SpoutType
from trident.state.interfaces import StateType
from trident.state.map_state import committed_map
from trident.state.sentinel import check_sentinel, expected_text, is_foreign, move_note
from trident.state.txid import CHANGES, KEPT, MISSED, RETRY_BITS, Sentinel, epoch_of

logger = logging.getLogger(__name__)

Make = Callable[[str, int, int], Any]

_TRIES = 3
_ABOVE_ALL = 1 << 62  # no sentinel is ahead of this attempt: a store ahead of the log is a mismatch, no replaced driver

Rewind = Callable[[Sequence[Found], bool], None]
"""Brings forward the states that do not match, or only finds out whether it can; raises before it writes anything."""


def check_meaning(topology: str, log: TransactionLog, now: Meaning, allow: bool) -> TopologyChanges:
    """Compare with the log; `TopologyChangedError` if the meaning of a state or a stream has changed. Nothing was written."""
    compared = compare(Meaning.of_log(log.state.declared), now, log.epoch << RETRY_BITS, log.state.txid + 1)
    if compared.refused and not allow:
        raise TopologyChangedError(topology, compared.refused)
    for difference in compared.refused:
        logger.warning(
            "topology %s: %s; taken as it is, because allow_changed_topology is set", topology, difference.text
        )
    for old, new in compared.renamed.items():
        log.append(RenameRecord(old, new))
    for change in compared.taken:
        logger.warning("topology %s: from batch %d on: %s", topology, log.state.txid + 1, change)
    for name in compared.dropped:
        logger.warning("topology %s: %s of the log is no longer declared; it stays as it is", topology, name)
    return compared


def compared_with_log(
    graph: Graph, plan: Plan, log: TransactionLog, allow: bool
) -> tuple[Graph, Plan, TopologyChanges]:
    """Return graph and plan as the log and former declarations have left their states, and what `check_meaning` finds."""
    known = log.state.declared.get("states", {})
    kept = with_kept_options(graph, known)
    changed = {now.name: now for before, now in zip(graph.states, kept.states, strict=True) if now is not before}
    for state in graph.states:
        now, declared = kept.state(state.name).spec.facts.kept, state.spec.facts.kept
        for option, value in known.get(state.name, {}).get(KEPT, {}).items():
            what = (graph.name, state.name, option, value)
            if option not in now:
                logger.warning("topology %s: the store of state %s cannot keep what the log has: %s=%r", *what)
            elif option not in declared:
                logger.info(
                    "topology %s: state %s keeps %s=%r, which its log has and its declaration does not set", *what
                )
    if changed:
        graph, plan = kept, replace(plan, states={**plan.states, **changed})
    compared = check_meaning(graph.name, log, meaning_of(graph), allow)
    return graph, with_evolutions(plan, compared.evolutions), compared


class NewMeaning:
    """What is new or changed: recorded with the first committed batch, so that code which commits none leaves no trace."""

    def __init__(self, log: TransactionLog, now: Meaning, lasting: Collection[str] = ()) -> None:
        self._log, before = log, Meaning.of_log(log.state.declared)
        both = {"states": (before.states, now.states), "streams": (before.streams, now.streams)}
        new = {
            kind: {name: of[name] for name in of if known.get(name) != of[name]} for kind, (known, of) in both.items()
        }
        self.declares: Mapping[str, Mapping[str, Any]] = new if any(new.values()) else {}  # by the next record
        # Recorded before anything is written, because that may stay although its batch fails.
        self.lasts = not set(lasting).isdisjoint(new["states"])

    @classmethod
    def of(cls, log: TransactionLog, plan: Plan, compared: TopologyChanges, lasting: Collection[str]) -> NewMeaning:
        """Return what is new of a topology that starts; it is recorded at once where a function migrates values from now on."""
        evolved, migrating = compared.evolutions.items(), compared.recorded.migrating
        by_function = [name for name, each in evolved if each.types and each.types[-1][2] is None and name in migrating]
        found = cls(log, _with_feeds(plan, log.state, compared.recorded), {*lasting, *by_function})
        if by_function and found.lasts:
            found.record()  # readers and the first commit have to know which values are of the new types
        return found

    def record(self) -> None:
        """Record it before a batch commits, but for what states miss from it on: the batch may never commit."""
        states, streams = self.declares["states"], self.declares["streams"]
        missed = {name: facts for name, facts in states.items() if MISSED in facts}
        self._log.append(TopologyRecord({name: states[name] for name in states if name not in missed}, streams))
        self.mark_recorded()
        self.declares = {"states": missed, "streams": {}} if missed else {}

    def mark_recorded(self) -> None:
        self.declares, self.lasts = {}, False


def _with_feeds(plan: Plan, log: LogState, meaning: Meaning) -> Meaning:
    """Return what is to be recorded: also what states keep, since when others miss what is read, what streams have read before.

    A feed goes on where its state means what it meant.
    """
    states, known, before = {}, log.declared.get("states", {}), log.declared.get("streams", {})
    for name, facts in meaning.states.items():
        means = {fact: value for fact, value in facts.items() if fact not in (CHANGES, KEPT)}
        since = log.changes_since(name) if goes_on(known.get(name), means) else None
        store = plan.states[name].spec.facts
        kept = {option: value for option, value in store.kept.items() if value != 0}
        feed = {CHANGES: log.txid if since is None else since} if store.keeps_changes else {}
        states[name] = {**means, **feed, **({KEPT: kept} if kept else {})}
    for name, facts in known.items():
        if name not in states and MISSED not in facts and not meaning.streams.keys().isdisjoint(facts["streams"]):
            states[name] = {**facts, MISSED: log.txid + 1}
    return Meaning(
        states, {name: _with_former_reads(facts, before.get(name, {})) for name, facts in meaning.streams.items()}
    )


def _with_former_reads(facts: Mapping[str, Any], before: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**facts, READS: sorted({*facts[READS], *before.get(READS, ())})} if READS in facts else facts


def reconcile(
    plan: Plan,
    log: TransactionLog,
    states: Mapping[str, Sequence[Any]],
    policy: str,
    make: Make,
    rewind: Rewind,
    executors: Sequence[str],
    lasting: Collection[str],
) -> None:
    """Bring log and stores together before the first batch; `StateMismatchError` if they do not belong so, by the policy."""
    kinds = kinds_of(plan, states)
    with ExitStack() as opened, owning(log):
        founds = [
            _compare(plan, log, name, _as_recorded(log, name, partitions, make, opened), partitions, name in lasting)
            for name, partitions in states.items()
            if partitions[0].offers("read_sentinel")
        ]
        spouts = {node.id: node.spout for node in plan.spouts}
        begins = {
            name: one.on_new_log if isinstance(one, SaysWhereItBegins) else "start" for name, one in spouts.items()
        }
        others = sorted(states.keys() - {found.name for found in founds})
        unseen = [name for name in others if not plan.states[name].spec.facts.in_memory]
        _recover(log, Accidents(log.state, founds, begins, unseen), policy, rewind)
        log.append(StartRecord.now(log.epoch, executors))
        by_name = {found.name: found for found in founds}
        for name, partitions in states.items():
            roams = plan.states[name].free_keys and len(partitions) > 1
            _lay_out(log, name, kinds[name], partitions, by_name.get(name), roams)


def _as_recorded(log: TransactionLog, name: str, wanted: Sequence[Any], make: Make, opened: ExitStack) -> Sequence[Any]:
    """Return the partitions of a state that the log knows; where there are more or fewer than wanted they are opened."""
    count = log.state.layouts.get(name, (len(wanted),))[0]
    if count == len(wanted):
        return wanted
    if note := move_note(wanted[0].read_sentinel(), log.state.incarnation):
        raise StateMovedError(name, note)  # the place may not even have so many partitions
    instances = []
    for partition in range(count):
        instances.append(make(name, partition, count))
        opened.callback(instances[-1].close)
    return instances


def _compare(
    plan: Plan, log: TransactionLog, name: str, laid_out: Sequence[Any], wanted: Sequence[Any], lasts: bool
) -> Found:
    """Compare a state with the log; `lasts`: nothing takes back what a failed attempt wrote to it."""
    instances = [*laid_out, *wanted[len(laid_out) :]]
    # The next commit, to be compared with what drivers of earlier epochs left behind.
    commits = log.state.commits(name, len(instances), attempt=_ABOVE_ALL)
    found = Found(name, instances, len(laid_out), _read_sentinels(instances, not any(one.expected for one in commits)))
    defines = lasts and any(spout_type_of(node.spout) is SpoutType.TRANSACTIONAL for node in plan.spouts)
    for partition, (instance, sentinel) in enumerate(zip(instances, found.sentinels, strict=True)):
        # The log expects nothing of an added partition; a sentinel of an earlier layout may be there.
        if partition >= found.known and sentinel is not None and _knows(log, sentinel):
            sentinel = sentinel._replace(txid=0)
        try:
            check_sentinel(name, partition, sentinel, commits[partition], instance.place)
            txid = commits[partition]
            if defines and sentinel is not None and sentinel.txid >= txid and txid not in log.state.definitions:
                # It would be another batch now, and the keys that it has written would take none of its rows.
                raise StateMismatchError(
                    name, partition, expected_text(txid), f"{sentinel}, which the log has not defined"
                )
        except StateMismatchError as mismatch:
            found.mismatches[partition] = mismatch
    return found


def _read_sentinels(partitions: Sequence[Any], is_new: bool) -> list[Sentinel | None]:
    """Read the sentinels; of a state that is new to the log, and has only values, as in a copy, ones that no log knows."""
    found: list[Sentinel | None] = [partition.read_sentinel() for partition in partitions]
    for at, partition in enumerate(partitions):
        copied = committed_map(partition) if is_new and found[at] is None else None
        last_txid = None if copied is None else copied.backing.facts.unclaimed_txid
        if last_txid is not None and (txid := last_txid()):
            found[at] = Sentinel("unknown", txid, 0)
    return found


def _refuse_other_places(mismatches: Sequence[Found], policy: str) -> None:
    # Not for a recovery: another state's values are not ours, and a state that was moved is not there.
    refused = (StateMovedError,) if policy == "keep_totals_even_if_wrong" else (StateMovedError, StatePlaceError)
    for one in (one for each in mismatches for one in each.mismatches.values()):
        if isinstance(one, refused):
            raise one


def _recover(log: TransactionLog, found: Accidents, policy: str, rewind: Rewind) -> None:
    mismatches = [each for each in found.founds if each.mismatches]
    _refuse_other_places(mismatches, policy)
    if not mismatches:
        _discard(log, found.founds if policy == "discard_totals" else [])
        return
    refused = found.why_refused(policy)
    if policy == "refuse" or refused:
        raise found.error(not found.why_refused("rewind") and _can_rewind(rewind, found.founds), refused)
    logger.warning("%s; state_recovery=%s", found.said, policy)
    if policy == "rewind":
        rewind(found.founds, False)
    elif policy == "discard_totals":
        _discard(log, found.founds)
    else:
        _adopt(log, found.founds)


def _can_rewind(rewind: Rewind, founds: Sequence[Found]) -> bool:
    """Whether a start that rewinds would go on, as far as is known before a batch is read."""
    try:
        rewind(founds, True)
    except Exception as error:  # noqa: BLE001  it opens the sources, which are user code
        logger.debug("rewinding is not possible: %s", error)
        return False
    return True


def _discard(log: TransactionLog, founds: Sequence[Found]) -> None:
    """Empty what does not match; on a new log also what seems empty, as only its sentinel may be lost."""
    is_new = not log.state.txid
    chosen = [
        each for each in founds if each.mismatches or (is_new and each.can_be_emptied and not any(each.sentinels))
    ]
    for found in sorted(chosen, key=lambda each: each.can_be_emptied):  # one that cannot is refused before any is
        for instance in found.instances:
            empty(log, instance)
        log.append(ResetRecord(found.name))
        if found.mismatches:
            logger.warning("state %s: emptied; its totals count the batches from %d on", found.name, log.state.txid + 1)


def _adopt(log: TransactionLog, founds: Sequence[Found]) -> None:
    """Take stores as they are: the last batch of any of them is treated as committed, with the values that it left."""
    state, attempt = log.state, log.epoch << RETRY_BITS
    base = max(
        [state.txid, *(sentinel.txid for found in founds for sentinel in found.sentinels if sentinel is not None)]
    )
    records = []
    # All are laid before the first record, by an epoch that the log does not know yet: after a crash in between they match no
    # log, and the next start adopts them again. A state that matches its end stays: the log knows the winners of its batches.
    for found in founds:
        beyond = any(sentinel is not None and sentinel.txid > state.txid for sentinel in found.sentinels)
        if not found.mismatches and not beyond:
            continue
        foreign = base > state.txid or any(s is not None and not _knows(log, s) for s in found.sentinels)
        for instance in found.instances:
            lay(log, instance, Sentinel(state.incarnation, base, attempt))
        laid = dict.fromkeys(range(len(found.instances)), (base, attempt))
        records.append(AdoptRecord(found.name, base, foreign, laid))
    for record in records:
        log.append(record)


def _knows(log: TransactionLog, sentinel: Sentinel) -> bool:
    """Whether the log knows the winners up to a sentinel, because a driver of this log wrote it."""
    return sentinel.incarnation == log.state.incarnation and epoch_of(sentinel.attempt) in log.state.epochs


@contextmanager
def owning(log: TransactionLog) -> Iterator[None]:
    """Raise `FencedError` in place of what a driver that was replaced finds: it is what its successor has written."""
    try:
        yield
    except TridentError:
        log.check_owner()
        raise


def lay(log: TransactionLog, instance: Any, sentinel: Sentinel) -> None:
    """Lay a sentinel over the one that was read last, whatever it is, if this driver still owns the log."""
    # The store takes it only over what was read before: so what a successor has written is found by the one or the other.
    log.check_owner()
    instance.move_sentinel(sentinel, force=True)


def empty(log: TransactionLog, instance: Any) -> None:
    """Empty a partition, if this driver still owns the log, and what it reads now is still there then."""
    instance.read_sentinel()
    log.check_owner()
    instance.reset()


def _lay_out(
    log: TransactionLog, name: str, kind: StateType | None, partitions: Sequence[Any], found: Found | None, roams: bool
) -> None:
    """Claim the place of a state that is new to the log or has another layout; keys stay where they are."""
    layout = (len(partitions), "custom" if kind is None else kind.value)
    if log.state.layouts.get(name) == layout and not (found and roams):
        return
    attempt = None
    if found is not None:
        attempt = log.epoch << RETRY_BITS
        txid = log.state.claimed_at(name)
        # Under a claim of batch 0 there may be what a failed attempt wrote, so another log must not treat it as empty.
        is_first = not any(sentinel is not None and sentinel.txid > txid for sentinel in found.sentinels)
        claim = Sentinel(log.state.incarnation, txid, attempt, sealed=txid > 0 or is_first)
        # The keys of dropped partitions have other writers now. And where keys roam, one of the batch that a driver left
        # unfinished may come to another partition, whose sentinel does not stop the old writer.
        for instance in [*partitions, *found.instances[len(partitions) :]]:
            _claim(log, instance, claim)
    log.append(LayoutRecord(name, *layout, attempt))


def _claim(log: TransactionLog, instance: Any, claim: Sentinel) -> None:
    """Write this driver's sentinel; a replaced driver that wakes up may still move its own a few times meanwhile."""
    place = instance.place
    what = f"claim the place of {place or 'a state'}"
    for left in reversed(range(_TRIES)):
        sentinel = instance.read_sentinel()
        if sentinel is not None and is_foreign(sentinel, place):
            raise StatePlaceError(what, place, sentinel.place)
        try:
            lay(log, instance, claim)
            return
        except (FencedError, BackendError):
            if not left:
                raise
