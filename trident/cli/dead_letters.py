"""The dead letters of a log, as `trident dead-letters` lists, shows and puts them back."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from trident.cli.console import problems, results, say, table
from trident.config import Config
from trident.coordination.log_address import open_reader
from trident.coordination.log_state import LogState
from trident.coordination.records import count_of, numbers_of, ranges_of
from trident.errors import LogError
from trident.naming import counted
from trident.runtime.commit.dead_letters import DeadLetter, DeadLetters, waiting
from trident.spout.interfaces import TransactionAttempt
from trident.state.encoding.codec import encode

_SHORT = 60
_NONE = "no dead letter waits"


@dataclass(frozen=True)
class _Box:
    """The dead letters of a log, as its readers see them."""

    letters: DeadLetters
    log: LogState
    writer: str | None

    @staticmethod
    def open(log_dir: str, folder: Path | None) -> _Box:
        with closing(open_reader(log_dir)) as reader:
            if not reader.is_there():
                raise LogError(
                    f"there is no transaction log in {log_dir}; name that of a topology, as for `trident log`"
                )
            log, writer = reader.refresh(), reader.holder()
        return _Box(DeadLetters(folder or Config(log_dir=log_dir).dead_letter_folder(log.topology)), log, writer)

    def is_back(self, letter: DeadLetter) -> bool:
        return letter.number in numbers_of(self.log.put_back.get(letter.txid, ()))

    def state_of(self, letter: DeadLetter) -> str:
        return "put back" if self.is_back(letter) else "waiting"

    def waiting(self) -> list[DeadLetter]:
        """Return the letters that are not back; print how many others the log counts whose files are not here."""
        letters = [letter for letter in self.letters.all(self.log) if not self.is_back(letter)]
        if (away := waiting(self.log) - len(letters)) > 0:
            say(
                f"{away:,} more wait, but are not in {self.letters.folder}: name their folder with --dead-letter-dir",
                "yellow",
                problems(),
            )
        return letters

    def find(self, id_: str) -> DeadLetter:
        """Return a letter by its id. Raises `typer.BadParameter`: there is none."""
        txid, _, number = id_.partition("-")
        if txid.isdecimal() and number.isdecimal():
            for letter in self.letters.of_batch(self.log, int(txid)):
                if letter.number == int(number):
                    return letter
        raise typer.BadParameter(
            f"there is no dead letter {id_!r} in {self.letters.folder}; `list` shows what there is"
        )

    def chosen(self, ids: Sequence[str]) -> list[DeadLetter]:
        """Return the letters of batches and ids, without those that are back; `BadParameter` if one is named alone."""
        letters = []
        for id_ in ids:
            if id_.isdecimal() and (batch := self.letters.of_batch(self.log, int(id_))):
                letters += [letter for letter in batch if not self.is_back(letter)]
            else:
                letters.append(self.find(id_))
                if self.is_back(letters[-1]):
                    raise typer.BadParameter(f"dead letter {id_} was put back already")
        return letters


def list_letters(log_dir: str, folder: Path | None, every: bool, as_json: bool) -> None:
    """Print the dead letters that wait, with `every` also those that are back."""
    box = _Box.open(log_dir, folder)
    letters = list(box.letters.all(box.log)) if every else box.waiting()
    if as_json:
        typer.echo(json.dumps([_as_data(box, letter) for letter in letters], ensure_ascii=False))
    elif letters:
        _print(box, letters)
    else:
        say(_NONE)


def show(log_dir: str, folder: Path | None, id_: str, as_json: bool) -> None:
    """Print one dead letter whole."""
    box = _Box.open(log_dir, folder)
    letter = box.find(id_)
    if as_json:
        typer.echo(json.dumps(_as_data(box, letter), ensure_ascii=False))
        return
    say(f"dead letter {letter.id}, {box.state_of(letter)}")
    say(f"batch {TransactionAttempt(letter.txid, letter.attempt)}, step {letter.failure.step!r}")
    for name, value in letter.left_out.values.items():
        say(f"  {name} = {value!r}")
    say(letter.failure.details.rstrip() or letter.failure.cause)


def replay(log_dir: str, folder: Path | None, ids: Sequence[str] | None) -> None:
    """Ask the topology to put dead letters back: the given ones, or all that wait."""
    box = _Box.open(log_dir, folder)
    asked = _ranges(box.chosen(ids) if ids else box.waiting())
    count = count_of(asked)
    if not count:
        say(_NONE)
        return
    box.letters.request(box.log, asked)
    by = "by the next driver of the topology" if box.writer is None else f"by the driver at work, {box.writer}"
    say(f"asked for {counted(count, 'dead letter')}, to be put back {by}")


def _ranges(letters: Iterable[DeadLetter]) -> dict[int, list[list[int]]]:
    numbers: dict[int, list[int]] = {}
    for letter in letters:
        numbers.setdefault(letter.txid, []).append(letter.number)
    return {txid: ranges_of(those) for txid, those in numbers.items()}


def _as_data(box: _Box, letter: DeadLetter) -> dict[str, Any]:
    """Return a letter as JSON has it: values as text, and all of them once more as bytes of the codec, typed."""
    return {
        "id": letter.id,
        "state": box.state_of(letter),
        "txid": letter.txid,
        "attempt": letter.attempt,
        "step": letter.failure.step,
        "error": letter.failure.cause,
        "details": letter.failure.details,
        "tuple": {name: repr(value) for name, value in letter.left_out.values.items()},
        "values": base64.b64encode(encode(dict(letter.left_out.values))).decode(),
    }


def _print(box: _Box, letters: Sequence[DeadLetter]) -> None:
    console = results()
    rows = table(console, "id", "state", "step", "tuple", "error")
    for letter in letters:
        failure = letter.failure
        rows.add_row(letter.id, box.state_of(letter), failure.step, _cut(failure.row or ""), _cut(failure.cause))
    console.print(rows, markup=False)


def _cut(text: str) -> str:
    return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"
