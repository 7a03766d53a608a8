"""Dead letters: tuples that a batch left out because an operation raised at them on its last try (`on_poison="dead_letter"`).

A batch with dead letters has a file of its own, `<txid>.<attempt>.<incarnation>.jsonl`, which is durable before the batch's
commit record. The record decides: only the file of the winning attempt is valid, so the file of an attempt that lost, or of
a driver that was replaced, neither adds letters nor replaces others. The log also says which letters were put back, or
discarded; a file never changes. Letters that are put back with other values have these in a file beside it, `….edited`.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trident.config import Config
from trident.errors import CorruptValueError, LogError
from trident.log.log_state import LogState
from trident.log.records import Ranges, count_of, numbers_of, ranges_of
from trident.servers.local_processes import make_directory, write_whole
from trident.spout.interfaces import TransactionAttempt
from trident.state.encoding.codec import decode, encode
from trident.state.encoding.equal_keys import canonical
from trident.steps.failures import Failure, LeftOut

logger = logging.getLogger(__name__)

_VERSION = 1  # of a letter, and of a request
_REQUESTS = "replay"
_MOST = 1 << 24  # letters of one request
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, CorruptValueError)


@dataclass(frozen=True)
class DeadLetter:
    """A tuple that its batch left out because an operation raised at it."""

    txid: int
    attempt: int
    number: int  # in the batch
    failure: Failure  # with the tuple, typed, as it was at the input of the step
    size: int = field(default=0, compare=False)  # of its line in the file; 0 if it has none

    @property
    def id(self) -> str:
        return f"{self.txid}-{self.number}"

    @property
    def left_out(self) -> LeftOut:
        assert self.failure.left_out is not None, "only a tuple that was left out is a dead letter"
        return self.failure.left_out

    def with_values(self, values: Mapping[str, Any]) -> DeadLetter:
        return replace(self, failure=replace(self.failure, left_out=replace(self.left_out, values=values)))

    def to_line(self) -> str:
        """Return the letter as JSON, readable except for the typed tuple, which is in the codec's bytes."""
        failure, left_out = self.failure, self.left_out
        return json.dumps(
            {
                "version": _VERSION, "txid": self.txid, "attempt": self.attempt, "number": self.number,
                "step": failure.step, "tuple": failure.row, "error": failure.cause, "details": failure.details,
                "entry": left_out.entry, "port": left_out.port,
                "partition": left_out.partition, "partitions": left_out.partitions,
                "values": base64.b64encode(encode(dict(left_out.values))).decode(),
            },
            ensure_ascii=False,
        )  # fmt: skip

    @staticmethod
    def of_line(line: str) -> DeadLetter:
        """Read what `to_line` gave; ValueError, KeyError or `CorruptValueError` if it is not that."""
        data = _of_this_version(json.loads(line))
        values = decode(base64.b64decode(data["values"], validate=True))
        left_out = LeftOut(values, *(data[name] for name in ("entry", "port", "partition", "partitions")))
        failure = Failure(data["step"], data["tuple"], data["error"], details=data["details"], left_out=left_out)
        return DeadLetter(data["txid"], data["attempt"], data["number"], failure, len(line))


@dataclass(frozen=True)
class Request:
    """A request to put dead letters back, or to discard them, and the file that holds it."""

    path: Path
    letters: Ranges
    edited: Sequence[DeadLetter] = ()  # put back with other values
    reason: str | None = None  # why they are discarded; None: they are put back


class DeadLetters:
    """The dead letters of a topology, in a folder: of the running driver, which writes them, and of readers."""

    def __init__(self, folder: str | os.PathLike[str], captures: bool = True) -> None:
        self.folder, self.captures = Path(folder), captures  # letters of earlier runs are put back in any case
        self._warned: set[str] = set()

    def write(self, attempt: TransactionAttempt, captured: Sequence[Failure], incarnation: str) -> None:
        """Make an attempt's dead letters durable; `LogError` if that cannot be done."""
        path = self._path(attempt.txid, attempt.attempt, incarnation)
        try:
            letters = (DeadLetter(*attempt, number, failure) for number, failure in enumerate(captured))
            text = "".join(letter.to_line() + "\n" for letter in letters)
            make_directory(self.folder)
            write_whole(path, text)
        except (OSError, CorruptValueError) as error:
            raise LogError(
                f"cannot write {len(captured)} dead letters of batch {attempt.txid} to {path}: {error}. The batch is "
                "not committed; make room or change dead_letter_dir, and start again"
            ) from error

    def all(self, log: LogState) -> Iterator[DeadLetter]:
        """Iterate over the dead letters of committed batches, put back or not, oldest batch first."""
        for txid in self._batches(log):
            yield from self.of_batch(log, txid)

    def of_batch(self, log: LogState, txid: int) -> list[DeadLetter]:
        """Return the dead letters of a committed batch; none if it has none, or its file is gone."""
        attempt = log.winners.winner(txid) if txid <= log.txid else None
        return [] if attempt is None else _read(self._path(txid, attempt, log.incarnation))

    def newest(self, log: LogState, most: int) -> list[DeadLetter]:
        """Return the newest letters that wait, at most so many, in the order of `all`."""
        found: list[DeadLetter] = []
        for txid in reversed(self._batches(log)):
            gone = numbers_of(log.put_back.get(txid, ()))
            found[:0] = [letter for letter in self.of_batch(log, txid) if letter.number not in gone]
            if len(found) >= most:
                break
        return found[max(0, len(found) - most) :]

    def waiting_letters(self, log: LogState, names: Sequence[str]) -> list[DeadLetter]:
        """Return the letters with these ids, and of these batches, that wait; `ValueError` if there is none, or it does not."""
        letters = []
        for name in names:
            batch = name.partition("-")[0]
            there = self.of_batch(log, int(batch)) if batch.isdecimal() else []
            found = there if name == batch else [letter for letter in there if letter.id == name]
            if not found:
                raise ValueError(f"there is no dead letter {name!r} in {self.folder}; `list` shows the ones that exist")
            states = [state_of(letter, log) for letter in found]
            if name != batch and states[0] != WAITING:
                raise ValueError(f"dead letter {name} was {states[0]} already")
            letters += [letter for letter, state in zip(found, states, strict=True) if state == WAITING]
        return letters

    def as_put_back(self, log: LogState, txid: int) -> dict[int, DeadLetter]:
        """Return the letters of a batch by number, with the values that they are put back with."""
        letters = self.of_batch(log, txid)
        edited = _read(self._edited_path(log, txid)) if letters else []
        return {letter.number: letter for letter in (*letters, *edited)}

    def edit(self, log: LogState, txid: int, letters: Mapping[int, DeadLetter]) -> None:
        """Note, durably, with which values letters of a batch are about to be put back: their own, or others."""
        own = {letter.number: letter for letter in self.of_batch(log, txid)}
        before = {letter.number: letter for letter in _read(self._edited_path(log, txid))}
        after = {number: letter for number, letter in {**before, **letters}.items() if letter != own.get(number)}
        if after != before:
            write_whole(
                self._edited_path(log, txid), "".join(after[number].to_line() + "\n" for number in sorted(after))
            )

    def _edited_path(self, log: LogState, txid: int) -> Path:
        return self._path(txid, log.winners.winner(txid) or 0, log.incarnation).with_suffix(".edited")

    def waiting_for(self, log: LogState, keys: Sequence[tuple[Any, ...]]) -> list[DeadLetter]:
        """Return the letters that wait and name a key, of the files that can be read."""
        found: list[DeadLetter] = []
        for txid in self._batches(log):
            with suppress(LogError):  # which `forget` raises
                found += [letter for letter in self.of_batch(log, txid) if any(_names(letter, key) for key in keys)]
        return [letter for letter in found if state_of(letter, log) == WAITING]

    def forget(self, keys: Sequence[tuple[Any, ...]]) -> int:
        """Remove the letters, of whatever attempt, whose tuple or error has each part of a key: a text, as a word."""
        removed, unread = 0, list[LogError]()
        for path in sorted([*self.folder.glob("*.jsonl"), *self.folder.glob("*.edited")]):
            try:
                letters = _read(path)
            except LogError as error:
                unread.append(error)
                continue
            kept = [letter for letter in letters if not any(_names(letter, key) for key in keys)]
            if len(kept) < len(letters):
                write_whole(path, "".join(letter.to_line() + "\n" for letter in kept))
                removed += (len(letters) - len(kept)) * (path.suffix == ".jsonl")
        for path in sorted((self.folder / _REQUESTS).glob("*.json")):
            with suppress(*_UNREADABLE):  # it is none
                edited = [DeadLetter.of_line(line) for line in json.loads(path.read_text(encoding="utf-8"))["edited"]]
                if any(_names(letter, key) for letter in edited for key in keys):
                    path.unlink()
        if unread:
            raise unread[0]  # it may name a key; the others name none any more
        return removed

    def request(
        self, log: LogState, letters: Ranges, edited: Sequence[DeadLetter] = (), reason: str | None = None
    ) -> Path:
        """Ask, durably, that letters be put back, or discarded for a reason: by the driver at work, or else the next one."""
        folder = self.folder / _REQUESTS
        path = folder / f"{time.time_ns():020}-{uuid.uuid4().hex}.json"
        asked = {str(txid): [list(one) for one in ranges] for txid, ranges in letters.items()}
        data = {"version": _VERSION, "incarnation": log.incarnation, "letters": asked}
        if edited:
            data["edited"] = [letter.to_line() for letter in edited]
        if reason is not None:
            data["discard"] = reason
        try:
            make_directory(folder)
            write_whole(path, json.dumps(data))
        except OSError as error:
            raise LogError(f"cannot ask for dead letters in {folder}: {error}. Nothing is put back") from error
        return path

    def requests(self, log: LogState) -> list[Request]:
        """Return the requests of this log, the newest first. One that cannot be read is reported and left alone."""
        requests = []
        try:
            paths = sorted(Path(entry) for entry in os.scandir(self.folder / _REQUESTS) if entry.name.endswith(".json"))
        except OSError:
            return []
        for path in paths:
            try:
                data = _of_this_version(json.loads(path.read_text(encoding="utf-8")))
                letters = {int(txid): _ranges(ranges) for txid, ranges in data["letters"].items()}
                if count_of(letters) > _MOST:
                    raise ValueError(f"more than {_MOST:,} of them")
                edited = [DeadLetter.of_line(line) for line in data.get("edited", ())]
                if data["incarnation"] == log.incarnation:
                    requests.append(Request(path, letters, edited, data.get("discard")))
            except _UNREADABLE as error:
                self.warn(f"{path} asks for dead letters in a form that cannot be read: {error}")
        return requests[::-1]

    def warn(self, problem: str) -> None:
        """Log a warning, once: a running driver looks every second."""
        if problem not in self._warned:
            self._warned.add(problem)
            logger.warning("%s", problem)

    def _path(self, txid: int, attempt: int, incarnation: str) -> Path:
        return self.folder / f"{txid:012d}.{attempt}.{incarnation}.jsonl"

    def _batches(self, log: LogState) -> list[int]:
        """Return the committed batches that have a file; those of other attempts, and foreign ones, are ignored."""
        found = []
        for path in self.folder.glob(f"*.{log.incarnation}.jsonl"):
            batch = path.name.partition(".")[0]
            txid = int(batch) if batch.isdecimal() else log.txid + 1
            winner = log.winners.winner(txid) if txid <= log.txid else None
            if winner is not None and path == self._path(txid, winner, log.incarnation):
                found.append(txid)
        return sorted(found)


def _of_this_version(data: dict[str, Any]) -> dict[str, Any]:
    if data["version"] != _VERSION:
        raise ValueError(f"it is of version {data['version']}; this version of the software reads version {_VERSION}")
    return data


def _ranges(data: Any) -> list[list[int]]:
    """Ranges as a request names them; ValueError or TypeError if they are not ranges."""
    for first, end in data:
        if not (type(first) is type(end) is int and 0 <= first <= end):
            raise ValueError(f"{first!r} to {end!r} is not a range")
    return list(data)


def _read(path: Path) -> list[DeadLetter]:
    try:
        return [DeadLetter.of_line(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    except FileNotFoundError:
        return []
    except _UNREADABLE as error:
        raise LogError(
            f"cannot read the dead letters in {path}: {error}. Restore that file, or remove it if it is not the topology's; "
            "until then letters of other batches can be shown, put back and discarded by their names"
        ) from error


def _names(letter: DeadLetter, key: Sequence[Any]) -> bool:
    failure = letter.failure
    values = [*_leaves(letter.left_out.values), *filter(None, (failure.row, failure.cause, failure.details))]
    return all(any(_is_in(part, value) for value in values) for part in key)


def _is_in(part: Any, value: Any) -> bool:
    if isinstance(part, str) and isinstance(value, str) and part:
        return re.search(rf"(?<!\w){re.escape(part)}(?!\w)", value) is not None
    return type(part) is type(value) and canonical(part) in (canonical(value),)  # all NaN are one object there


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from (leaf for each in value.values() for leaf in _leaves(each))
    elif isinstance(value, list | tuple | set):
        yield value  # a tuple may be a key
        yield from (leaf for each in value for leaf in _leaves(each))
    else:
        yield value


WAITING, PUT_BACK = "waiting", "put back"


def state_of(letter: DeadLetter, log: LogState) -> str:
    """Return whether a letter waits, was put back, or was discarded, with the reason."""
    for reason, letters in log.discarded:
        if letter.number in numbers_of(letters.get(letter.txid, ())):
            return f"discarded: {reason}"
    return PUT_BACK if letter.number in numbers_of(log.put_back.get(letter.txid, ())) else WAITING


def ranges_by_batch(letters: Iterable[DeadLetter]) -> dict[int, list[list[int]]]:
    """Return letters as the log and requests name them."""
    numbers: dict[int, list[int]] = {}
    for letter in letters:
        numbers.setdefault(letter.txid, []).append(letter.number)
    return {txid: ranges_of(those) for txid, those in numbers.items()}


def waiting(log: LogState) -> int:
    """Return how many dead letters there are that no committed batch has put back, and that were not discarded."""
    return log.totals.get("dead_letters", 0) - count_of(log.put_back)


def dead_letters_of(config: Config, topology: str) -> DeadLetters:
    return DeadLetters(config.dead_letter_folder(topology), config.on_poison == "dead_letter")
