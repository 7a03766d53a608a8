"""A mutant: the product with one seeded bug, and the tests that are to catch it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


class StaleMutantError(AssertionError):
    """A mutant is of code that is not there any more; the list must be brought up to date."""


@dataclass(frozen=True)
class Mutant:
    """One bug.

    `name`: what is wrong in it, in a few words.
    `file`: the file with the bug, in the project.
    `old`, `new`: the snippet that is replaced, which the file has exactly once, and what it becomes.
    `tests`: files or node ids; one of their tests has to fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def seeded(self, source: str) -> str:
        """Return a source with the bug; `StaleMutantError` unless it has the snippet exactly once."""
        found = source.count(self.old)
        if found != 1 or self.old == self.new:
            raise StaleMutantError(
                f"mutant {self.name!r}: {self.file} has its snippet {found} times, not once:\n{self.old}\n"
                "Bring the mutant up to date with the code, in the list that it is in"
            )
        return source.replace(self.old, self.new)

    @contextmanager
    def living_in(self, tree: Path) -> Iterator[None]:
        """Have the bug in a copy of the project, for a while."""
        path = tree / self.file
        source = path.read_text(encoding="utf-8")
        path.write_text(self.seeded(source), encoding="utf-8")
        _forget_compiled(path)
        try:
            yield
        finally:
            path.write_text(source, encoding="utf-8")
            _forget_compiled(path)


def mutants(hunks: str) -> tuple[Mutant, ...]:
    """Read bugs as they are written in `mutants_of_*.py`.

    `@ file`: what follows is of this file. `# name`: a bug begins. `-`, `+`: the lines of its snippet, and what they become;
    without the latter the lines go. `? test`: what is to catch the bug; before the first name, those that have no other.
    """
    found: list[Mutant] = []
    for part in hunks.strip().removeprefix("@ ").split("\n@ "):
        head, *bugs = part.split("\n# ")
        file, *usual = head.split("\n? ")
        for name, *lines in (bug.split("\n") for bug in bugs):
            old, new, tests = ([line[1:] for line in lines if line[0] == mark] for mark in "-+?")
            end = "" if new else "\n"
            asked = tuple(test.strip() for test in tests) or tuple(usual)
            found.append(Mutant(name, file, "\n".join(old) + end, "\n".join(new), asked))
    return tuple(found)


def _forget_compiled(path: Path) -> None:
    """Remove what Python compiled: a file of the same size and second would be taken for the one before."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        os.unlink(compiled)  # noqa: PTH108  as all of Python's own
