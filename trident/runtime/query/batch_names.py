"""Whether a batch that was named by a job has been written already: a function of values.

A definition of such a batch has its `name`, and of all names so far the greatest, which are few: `names`, in order. Whatever
was passed over is not greater than `floor`. So of a name above it is known whether it was written, however often a job is
repeated, and of one below it is known that it is not known.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from typing import Any

from trident.errors import CheckpointMismatchError, SpoutError

NAMES_KEPT = 400


def definition_of_name(
    name: str, last: Mapping[str, Any] | None, begun: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Return the definition of a named batch; None if it was written already.

    `last`: the definition of the last batch; None: there is none.
    `begun`: the definition of a batch that was begun and has to be finished first, if there is one.
    Raises `SpoutError`: the name is older than all that the log remembers, so it cannot be known whether it was written.
    Raises `CheckpointMismatchError`: the batches of this log come from a query.
    """
    if last is not None and "name" not in last:
        raise CheckpointMismatchError(
            f"write(batch={name!r}): the batches of this log come from a query, the last one is {last['batch']}: give jobs "
            "that name their batches a function, or a log_dir, of their own"
        )
    names: list[str] = [] if last is None else list(last["names"])
    floor = None if last is None else last["floor"]
    if name in names or name == floor:
        return None
    if floor is not None and name <= floor:
        raise SpoutError(
            f"write(batch={name!r}): the log remembers the {len(names)} greatest names, those after {floor!r}, and this one is "
            "not after it: whether it was written cannot be known. Name batches in increasing order, as by their date"
        )
    if begun is not None and begun["name"] != name:
        raise SpoutError(
            f"write(batch={name!r}): the batch {begun['name']!r} was begun and is not finished, and transactional states may "
            f"have a part of it: write batch {begun['name']!r} first"
        )
    insort(names, name)
    if len(names) > NAMES_KEPT:
        floor = names.pop(0)
    return {"name": name, "names": names, "floor": floor}
