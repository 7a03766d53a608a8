"""Switches off E1 or E2 (`docs/internals/placement.md`) in this process: the campaign must see that they are missing.

The wrapped factory of a case brings the wish to each worker, where it is unpickled. A worker that serves the next case gets
the wish of that one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from trident.runtime.commit import committing
from trident.runtime.engine import tasks
from trident.state.txid import Txid

__all__ = ["set_rules"]


def _nothing(*_: Any, **__: Any) -> str:
    return ""


def _no_digests(*_: Any) -> dict[int, str]:
    return {}


def _same(txid: Txid, _: str) -> Txid:
    return txid


_SWITCHES: dict[str, list[tuple[Any, str, Callable[..., Any]]]] = {
    "E1": [(committing, "_refuse_second_run", _nothing), (Txid, "of_run", _same)],
    "E2": [(tasks, "digests_of", _no_digests), (tasks, "is_mixed", _nothing)],
}
_ORIGINALS = {
    (owner, name): getattr(owner, name) for switches in _SWITCHES.values() for owner, name, _ in switches
    if hasattr(owner, name)
}  # fmt: skip


def set_rules(without: Collection[str], noticing: Callable[[], None] | None = None) -> None:
    """Switch rules off, and all others on.

    Parameters
    ----------
    noticing
        Called when Spark runs a task that commits again.
    """
    for rule, switches in _SWITCHES.items():
        for owner, name, instead in switches:
            if (owner, name) in _ORIGINALS:
                setattr(owner, name, instead if rule in without else _ORIGINALS[owner, name])
    if noticing is not None and "E1" not in without:
        refuse = _ORIGINALS[committing, "_refuse_second_run"]

        def noticed(*args: Any, **kwargs: Any) -> Any:
            from pyspark import TaskContext

            context = TaskContext.get()
            if context is not None and context.attemptNumber() > 0:
                noticing()
            return refuse(*args, **kwargs)

        committing._refuse_second_run = noticed
