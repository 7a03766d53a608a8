"""The folder of a demo: the topology, its text, the counts, the log; and the text's words counted by plain Python."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trident.errors import LogHeldError, SpoutError, StateError
from trident.log.lock import held_by, list_log
from trident.log.log_reader import LogReader, exists
from trident.log.log_state import LogState
from trident.servers.local_processes import write_whole

_BATCH_BYTES = (1 << 10, 8 << 20)

_TOPOLOGY = '''\
"""The topology that `trident demo` runs. `demo.json` beside this file names the text; `count` is a Delta table."""

import json
from pathlib import Path

from spouts import TextFileSpout
from states.delta import DeltaState
from trident import TridentTopology
from trident.operations import Count, Split

here = Path(__file__).resolve().parent
demo = json.loads((here / "demo.json").read_text(encoding="utf-8"))

topology = TridentTopology("word-count")
word_counts = (
    topology.new_stream("lines", TextFileSpout(demo["files"], max_batch_bytes=demo["max_batch_bytes"], tail=0))
    .each("line", Split(), "word")
    .group_by("word")
    .persistent_aggregate(DeltaState(here / "count"), Count(), "count")
)
'''


@dataclass(frozen=True)
class DemoFolder:
    """The folder of a demo; nothing outside of `path` is written."""

    path: Path

    @property
    def module(self) -> Path:
        return self.path / "word_count.py"

    @property
    def log_dir(self) -> Path:
        return self.path / "log"

    @property
    def delta_log(self) -> Path:
        """Where the Delta table of the state's changes records its commits."""
        return self.path / "count" / "_trident" / "changes" / "_delta_log"

    def clear(self) -> None:
        """Forget an earlier demo; refused if there is none, or if it runs."""
        if not self.path.exists():
            return
        self._check_ours()
        claims = list_log(self.log_dir).claims if self.log_dir.is_dir() else []
        holder = held_by(self.log_dir, claims[-1]) if claims else None
        if holder is not None:
            raise LogHeldError(str(self.log_dir), holder)
        shutil.rmtree(self.path)

    def prepare(self, paths: Sequence[str], text: DemoText) -> int:
        """Write the topology and what it reads; return the size of a batch. `StateError` if other text was counted here."""
        self._check_ours()
        known = self._read_demo_json()
        if known and known["paths"] != list(paths):
            raise StateError(
                f"{_near(self.path)} has counted the words of {_names(known['paths'])}, not of {_names(paths)}. "
                "Start afresh with --fresh, or keep these counts elsewhere with --state-dir"
            )
        # About 32 batches, whatever the amount of text.
        size = int(known.get("max_batch_bytes") or min(max(text.size // 32, _BATCH_BYTES[0]), _BATCH_BYTES[1]))
        self.path.mkdir(parents=True, exist_ok=True)
        self.module.write_text(_TOPOLOGY, encoding="utf-8")
        demo = {"paths": list(paths), "files": text.files, "max_batch_bytes": size}
        write_whole(self.path / "demo.json", json.dumps(demo, indent=1))
        return size

    def log(self) -> LogState | None:
        return LogReader(self.log_dir).refresh() if exists(self.log_dir) else None

    def command(self, *words: str) -> list[str]:
        target, called = f"{_near(self.module)}:topology", Path(sys.argv[0])
        on_path = called.name != "trident" or shutil.which("trident") is not None
        program = "trident" if on_path else _near(called)
        return [program, "get", target, "count", *words, "--log-dir", _near(self.log_dir)]

    def _read_demo_json(self) -> dict[str, Any]:
        try:
            values: dict[str, Any] = json.loads((self.path / "demo.json").read_bytes())
            return values
        except FileNotFoundError:
            return {}

    def _check_ours(self) -> None:
        if self.path.is_dir() and not (self.path / "demo.json").exists() and any(self.path.iterdir()):
            raise StateError(
                f"{_near(self.path)} is not the folder of a demo; nothing was changed. Name another with --state-dir"
            )
        if self.path.exists() and not self.path.is_dir():
            raise StateError(f"{_near(self.path)} is not a folder. Name another one with --state-dir")


def _near(path: Path) -> str:
    """Return a path relative to the working directory, if it is within."""
    absolute = path.absolute()
    return os.path.relpath(absolute) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def _names(paths: Sequence[str]) -> str:
    return ", ".join(paths) or "the standard library"


_NOT_THE_LIBRARY = {"site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class DemoText:
    """The UTF-8 files that the demo reads, with their bytes and lines, and how many others were left out."""

    files: tuple[str, ...]
    size: int
    lines: int
    skipped: int


def standard_library() -> list[Path]:
    library = Path(sysconfig.get_path("stdlib"))
    return [path for path in _walk(library) if path.suffix == ".py"]


def find_text(paths: Sequence[Path]) -> DemoText:
    """Find the UTF-8 text files among `paths` and in folders of them; hidden files and links to folders are left out."""
    files: list[str] = []
    size = lines = skipped = 0
    for path in sorted({each.resolve() for root in paths for each in _files_of(root)}):
        try:
            data = path.read_bytes()
        except OSError as error:
            raise SpoutError(f"cannot read {path}: {error.strerror}. Leave it out, or make it readable") from error
        if not _is_text(data):
            skipped += 1
        elif data:
            files.append(str(path))
            size += len(data)
            lines += data.count(b"\n") + (not data.endswith(b"\n"))
    if not files:
        raise SpoutError(f"no text to count in {', '.join(map(str, paths))}: {skipped} files, none of them UTF-8 text")
    return DemoText(tuple(files), size, lines, skipped)


def count_words(files: Sequence[str]) -> Counter[str]:
    """Count the words of files: lines are split at single spaces, and an empty text is not a word."""
    counts: Counter[str] = Counter()
    for file in files:
        text = Path(file).read_bytes().removeprefix(b"\xef\xbb\xbf").decode()
        for line in text.split("\n"):
            counts.update(line.removesuffix("\r").split(" "))
    counts.pop("", None)
    return counts


def _files_of(root: Path) -> Iterator[Path]:
    if root.is_dir():
        yield from _walk(root)
    elif root.is_file():
        yield root
    else:
        raise SpoutError(f"cannot count the words of {root}: there is no such file or folder")


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_THE_LIBRARY and not name.startswith(".")]
        paths = (Path(folder, name) for name in names if not name.startswith("."))
        yield from (path for path in paths if path.is_file())


def _is_text(data: bytes) -> bool:
    with suppress(UnicodeDecodeError):
        data.decode()
        return b"\0" not in data
    return False
