"""Which dead letters the next batch puts back, and the parts of the batch that contain them.

The letters are part of a batch's definition, under `LETTERS`, and are logged like the definition of a transactional spout: a
batch that is tried again puts the same letters back. The commit record holds the definition and so marks them as put back.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa

from trident.arrow import rows_without_columns, schema_of
from trident.engine.fragment_runs import PutBack
from trident.engine.routing import RowFrame
from trident.engine.worker import Program
from trident.errors import LogError
from trident.fields import Fields
from trident.graph import PersistNode, QueryNode, RepartitionNode
from trident.log.log_interface import TransactionLog
from trident.log.log_state import LogState
from trident.log.records import LETTERS, DiscardRecord, Ranges, numbers_of, ranges_of, with_letters
from trident.plan import Exchange, Plan
from trident.read.written_values import read_as
from trident.run.dead_letters import DeadLetter, DeadLetters, Request, ranges_by_batch
from trident.steps.failures import Failure, LeftOut, StepFailed
from trident.steps.key_columns import places_of
from trident.steps.rows import columns_of

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_MOST = 10_000  # letters of one batch
_MOST_BYTES = 16 << 20  # of their lines; one that is longer comes alone


class _Place(NamedTuple):
    """Where letters return: the fragment, its step or entry, the number of the input, the partition, and how many there are."""

    entry: str
    step: str
    port: int
    partition: int
    partitions: int


class Replays:
    """What the driver loop asks about dead letters that are to be put back."""

    def __init__(self, plan: Plan, letters: DeadLetters) -> None:
        self._plan, self._letters = plan, letters
        self.look_at = float("-inf")  # when to ask for the `next` ones

    def refresh(self) -> None:
        """Look for requests before the next batch, instead of once a second. For any thread."""
        self.look_at = float("-inf")

    def next(self, log: TransactionLog, now: float) -> dict[int, list[list[int]]] | None:
        """Return the letters that a new batch puts back, None if there are none; record which are discarded."""
        self.look_at = now + _LOOK_EVERY_S  # set before the look, so that a `refresh` meanwhile is not lost
        requests = self._letters.requests(log.state)
        for request in requests:
            if request.reason is not None and (given_up := [*self._requested_letters(log.state, [request])]):
                log.append(DiscardRecord(ranges_by_batch(given_up), request.reason))
        chosen: dict[int, dict[int, DeadLetter]] = {}
        count = size = 0
        for letter in self._requested_letters(log.state, [request for request in requests if request.reason is None]):
            if letter.number in chosen.get(letter.txid, ()):
                continue
            count, size = count + 1, size + letter.size
            if count > _MOST or (count > 1 and size > _MOST_BYTES):
                break
            chosen.setdefault(letter.txid, {})[letter.number] = letter
        if not chosen or not self._fix_values(log.state, chosen):
            return None
        self.refresh()  # there may be more
        return {txid: ranges_of(numbers) for txid, numbers in chosen.items()}

    def _fix_values(self, log: LogState, chosen: Mapping[int, Mapping[int, DeadLetter]]) -> bool:
        """Note the values of letters before a batch is defined with them, as each attempt has the same; whether it was done."""
        try:
            for txid, letters in chosen.items():
                self._letters.edit(log, txid, letters)
        except (OSError, LogError) as error:
            self._letters.warn(
                f"topology {self._plan.topology}: {error}; dead letters are not put back until that is fixed"
            )
            return False
        return True

    def _requested_letters(self, log: LogState, requests: Sequence[Request]) -> Iterator[DeadLetter]:
        """Iterate over the requested letters that no batch puts back yet; a request that is fulfilled is removed."""
        taken: Ranges = log.put_back
        for definitions in log.definitions.values():  # of batches in flight
            taken = with_letters(taken, definitions.get(LETTERS) or {})
        for request in requests:
            edited = {letter.id: letter for letter in request.edited}
            met = True
            for txid, ranges in request.letters.items():
                waiting = set(numbers_of(ranges)).difference(numbers_of(log.put_back.get(txid, ())))
                try:
                    letters = self._letters.of_batch(log, txid) if waiting else []
                except LogError as error:  # for a moment, maybe; only the user who asked waits for them
                    self._letters.warn(
                        f"topology {self._plan.topology}: {error}; they are not put back until it can be read"
                    )
                    met = False
                    continue
                there = [letter for letter in letters if letter.number in waiting]
                met = met and not there
                in_flight = set(numbers_of(taken.get(txid, ())))
                yield from (edited.get(letter.id, letter) for letter in there if letter.number not in in_flight)
            if met:
                with suppress(OSError):  # it does no harm
                    request.path.unlink(missing_ok=True)

    def size_of(self, definition: Ranges, log: LogState) -> int:
        """Return about how many bytes the letters of a batch have; `LogError` if they cannot be read."""
        return sum(letter.size for letter in self._read_letters(definition, log))

    def parts(self, definition: Ranges, log: LogState, program: Program) -> Iterator[tuple[str, PutBack]]:
        """Cut a batch's letters into parts, by the fragment where they come in; `LogError` if a file cannot be read."""
        by_place: dict[_Place, list[DeadLetter]] = {}
        for letter in self._read_letters(definition, log):
            left_out = letter.left_out
            at = left_out.entry, letter.failure.step, left_out.port, left_out.partition, left_out.partitions
            by_place.setdefault(_Place(*at), []).append(letter)
        for place, letters in by_place.items():
            table, lost = _table(place, _fields_at(self._plan, place), letters)
            if not table.num_rows:
                part = PutBack(lost=lost)
            elif place.entry in program.emitters:
                part = PutBack({(place.step, place.port): table}, lost=lost)
            else:
                part = PutBack(frames=list(_frames(place, table, program.exchanges.get(place.entry))), lost=lost)
            if part.count != len(letters):  # the record would mark the others as put back
                raise LogError(f"of {len(letters)} dead letters at {place} only {part.count} were put back")
            yield place.entry, part

    def _read_letters(self, definition: Ranges, log: LogState) -> Iterator[DeadLetter]:
        for txid, ranges in definition.items():
            letters = self._letters.as_put_back(log, txid)
            forgotten = {number for _, gone in log.discarded for number in numbers_of(gone.get(txid, ()))}
            for number in sorted(set(numbers_of(ranges)) - forgotten):  # while their batch was in flight
                yield letters.get(number) or self._missing_letter(txid, number)

    def _missing_letter(self, txid: int, number: int) -> DeadLetter:
        """Return a stand-in for a letter whose file is gone: it has no place, so it fails and the error names it."""
        name, folder = f"{txid}-{number}", self._letters.folder
        cause = f"dead letter {name} is to be put back, but it is no longer in {folder}; restore its file"
        return DeadLetter(txid, 0, number, Failure("dead letters", name, cause, left_out=LeftOut({}, "")))


def _fields_at(plan: Plan, place: _Place) -> Fields | None:
    if place.step == place.entry:
        if place.entry in plan.exchanges:
            inputs = plan.exchanges[place.entry].inputs
            return inputs[place.port] if place.port < len(inputs) else None
        queries = {node.id for node in plan.commits if isinstance(node, QueryNode)}  # other commits leave no tuples out
        sinks = (sink for each in plan.fragments.values() for sink in each.sinks if sink.target == place.entry)
        return next((sink.fields for sink in sinks if place.entry in queries), None)
    fragment = plan.fragments.get(place.entry)
    if fragment is None:
        return None
    for step in fragment.steps:
        if (step.id, 0) == (place.step, place.port):
            sources = {each.id: each.node.fields for each in fragment.steps}
            fields: Fields = sources.get(step.sources[0], fragment.fields)
            return fields.select(list(fragment.columns[step.sources[0]]))
    return next((sink.fields for sink in fragment.sinks if (sink.target, sink.port) == (place.step, place.port)), None)


def _table(place: _Place, fields: Fields | None, letters: Iterable[DeadLetter]) -> tuple[pa.Table, list[Failure]]:
    rows, lost = [], []
    for letter in letters:
        try:
            row = _row(place, fields, letter)
            columns_of(place.step, fields or Fields([]), [row])
            rows.append(row)
        except StepFailed as error:
            failure = letter.failure
            lost.append(Failure(failure.step, failure.row, error.failure.cause, left_out=letter.left_out))
    if fields is None or not len(fields):
        return rows_without_columns(len(rows)), lost
    return pa.table(columns_of(place.step, fields, rows), schema=schema_of(fields)), lost


def _row(place: _Place, fields: Fields | None, letter: DeadLetter) -> tuple[Any, ...]:
    values = letter.left_out.values
    if not place.entry:
        raise StepFailed(letter.failure)
    if fields is None:
        cause = f"this topology has no step {place.step!r} behind {place.entry!r} at which the tuple could be put back"
        raise StepFailed(Failure(place.step, letter.failure.row, cause))
    missing = [name for name in fields.names if name not in values]
    if missing:
        cause = f"the dead letter does not have the fields {missing}, which this step and those behind it now read"
        raise StepFailed(Failure(place.step, letter.failure.row, cause))
    return tuple(read_as(values[name], fields.type_of(name)) for name in fields.names)  # a null may have been edited


def _frames(place: _Place, table: pa.Table, exchange: Exchange | None) -> Iterator[RowFrame]:
    step = "" if place.step == place.entry else place.step
    order = (LETTERS, place.partitions, place.partition)
    # None: behind a state in the driver.
    partitions = place.partitions if exchange is None else exchange.partitions or 1
    keys = _keys(place, exchange)
    if place.partitions == partitions or not keys or not set(keys).issubset(table.schema.names):
        yield RowFrame(place.entry, place.port, place.partition % partitions, order, table, step)
        return
    places = places_of(table, keys, partitions)
    for partition in sorted(set(places.tolist())):
        rows = table.filter(pa.array(places == partition))
        yield RowFrame(place.entry, place.port, partition, order, rows, step)


def _keys(place: _Place, exchange: Exchange | None) -> tuple[str, ...]:
    """The fields by which an exchange chooses the partition, as far as they are known where the tuples come in."""
    node = None if exchange is None else exchange.node
    if isinstance(node, (PersistNode, QueryNode)):
        return ()  # a state's partitions are not chosen by a letter
    if isinstance(node, RepartitionNode):
        return node.routing.fields.names if node.routing.kind == "hash" else ()
    return node.groups[place.port].names if node is not None and place.step == place.entry else ()
