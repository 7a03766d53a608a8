"""The order of sentinels as a table: what a writer may lay, given what it read and what is there by now.

The rule is `check_move` of `trident.state.sentinel`. A store may state it in another language (Lua, CQL, SQL), so the same
cases are put to each store.
"""

from typing import NamedTuple

from trident.errors import BackendError, FencedError, SecondRunError, StateLossDetected, StatePlaceError
from trident.state.txid import Sentinel

__all__ = ["SENTINEL_CASES", "SentinelCase"]


class SentinelCase(NamedTuple):
    """A writer has read `seen`; the store has `found` when it lays `own`; `error` is raised, or the move is made."""

    meaning: str
    seen: Sentinel | None
    found: Sentinel | None
    own: Sentinel
    error: type[Exception] | None = None
    force: bool = False


def _at(
    txid: int, attempt: int, incarnation: str = "log", place: str = "", sealed: bool = True, run: str = ""
) -> Sentinel:
    return Sentinel(incarnation, txid, attempt, place or "contract/counts", sealed, run)


_READ = _at(3, 5)
_OPEN = _at(3, 5, sealed=False)
_RUN = _at(3, 5, run="first", sealed=False)
_NAMELESS = Sentinel("log", 3, 5)

SENTINEL_CASES = (
    SentinelCase("the next batch", _READ, _READ, _at(4, 5)),
    SentinelCase("the next attempt", _READ, _READ, _at(3, 6)),
    SentinelCase("the same commit again", _READ, _READ, _at(3, 5)),
    SentinelCase("the seal of a commit", _OPEN, _OPEN, _at(3, 5)),
    SentinelCase("over a record that names no state", _NAMELESS, _NAMELESS, _at(4, 5)),
    SentinelCase("an earlier batch", _READ, _READ, _at(2, 5), FencedError),
    SentinelCase("an earlier attempt", _READ, _READ, _at(4, 4), FencedError),
    SentinelCase("an earlier batch by a later attempt", _READ, _READ, _at(2, 9), FencedError),
    SentinelCase("another log", _READ, _READ, _at(4, 5, "other"), FencedError),
    SentinelCase("another state's place", _READ, _READ, _at(4, 5, place="contract/other"), StatePlaceError),
    SentinelCase("an earlier batch, by force", _READ, _READ, _at(2, 5), force=True),
    SentinelCase("another log, by force", _READ, _READ, _at(1, 0, "other"), force=True),
    SentinelCase("another state's place, by force", _READ, _READ, _at(4, 5, place="contract/other"), force=True),
    SentinelCase("over a successor", _READ, _at(4, 6), _at(4, 5), FencedError),
    SentinelCase("over an unknown commit that is behind", _READ, _at(3, 6), _at(4, 7), BackendError),
    SentinelCase("over an unknown commit, by force", _READ, _at(3, 6), _at(9, 9), BackendError, force=True),
    SentinelCase("over a rollback", _READ, _at(2, 5), _at(4, 5), StateLossDetected),
    SentinelCase("over a rollback of the seal", _READ, _OPEN, _at(4, 5), StateLossDetected),
    SentinelCase("the first", None, None, _at(1, 0)),
    SentinelCase("the first, where another writer was quicker", None, _at(1, 1), _at(1, 0), FencedError),
    SentinelCase("over a store that was emptied", _READ, None, _at(4, 5), StateLossDetected),
    SentinelCase("over a store that was emptied, by force", _READ, None, _at(4, 5), StateLossDetected, force=True),
    SentinelCase("a run of a task over the claim of a start", _READ, _READ, _at(3, 5, run="first", sealed=False)),
    SentinelCase("the seal of a run", _RUN, _RUN, _at(3, 5, run="first")),
    SentinelCase("the next attempt over a run", _RUN, _RUN, _at(3, 6, run="second")),
    SentinelCase("another run of the same commit", _RUN, _RUN, _at(3, 5, run="second"), SecondRunError),
    SentinelCase("the driver over a run of the same commit", _RUN, _RUN, _at(3, 5), SecondRunError),
    SentinelCase(
        "over a run that was complete",
        _at(3, 5, run="first"),
        _at(3, 5, run="first"),
        _at(3, 5, run="second"),
        SecondRunError,
    ),
    SentinelCase("over a run that was quicker", _READ, _at(4, 5, run="first"), _at(4, 5, run="second"), SecondRunError),
    SentinelCase("over another run, by force", _RUN, _RUN, _at(3, 5, run="second"), force=True),
)
"""Two sentinels of one case are of the same state unless the case is about that; None: there is no sentinel."""
