"""Refuses a Delta table inside the folder of another one, because the outer vacuum would delete the inner files.

Two states may be opened in any order and by different programs, so a writer looks above and below when it opens its
table. And no vacuum deletes files that are not named like the data files of a table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trident.errors import StateError

__all__ = ["only_data_files", "refuse_nesting"]

_LOG = "_delta_log"
_INSIDE = "_trident"  # where the changes of this state are
_DATA_FILE = re.compile(r"part-[\w.=-]+\.parquet")


def refuse_nesting(name: str, uri: str, local: Path | None, is_table: Callable[[str], bool]) -> None:
    """Raise `StateError` if a table is above this one, or, on a local disk, below it.

    Parameters
    ----------
    name
        What errors call the table.
    uri
        Where it is; used without `local`.
    local
        Its folder.
    is_table
        Tells whether there is a table at a URI.
    """
    if local is None:
        above = next((each for each in _parents(uri) if is_table(each)), None)
        below = None
    else:
        folder = local.resolve()
        above = next((str(each) for each in folder.parents if (each / _LOG).is_dir()), None)
        below = next(_tables_below(folder), None)
    if above is not None:
        raise StateError(
            f"open Delta table {name}: it lies in the folder of Delta table {above}, which deletes files that it does not "
            "know. Nothing was written. Give each state a folder beside the others"
        )
    if below is not None:
        raise StateError(
            f"open Delta table {name}: another table, {below}, lies in its folder, and files in there that this one does "
            "not know are deleted. Nothing was written. Move one of them: each state needs a folder beside the others"
        )


def only_data_files(names: Sequence[str]) -> list[str]:
    """Return those of the files that a table does not use which are named like its own, so that they may be deleted."""
    return [name for name in names if _DATA_FILE.fullmatch(name)]


def _parents(uri: str) -> Iterator[str]:
    scheme, _, rest = uri.partition("://")
    parts = rest.strip("/").split("/")
    for length in range(len(parts) - 1, 0, -1):
        yield f"{scheme}://{'/'.join(parts[:length])}"


def _tables_below(folder: Path) -> Iterator[str]:
    for at, folders, _ in os.walk(folder):
        if _LOG in folders and Path(at) != folder:
            yield at
        own = {_LOG, _INSIDE} if Path(at) == folder else {_LOG}
        folders[:] = [name for name in folders if name not in own]
