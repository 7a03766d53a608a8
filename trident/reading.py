"""From any process: states are read, followed, moved, migrated, verified and explained; `read_history` reads a log."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from trident.config import Config
from trident.graph import Graph, name_of_state
from trident.stream import TridentState
from trident.topology import TridentTopology

if TYPE_CHECKING:
    from trident.log.records import CommitRecord
    from trident.read.change_feed import ChangeFeed
    from trident.read.state_reader import JointReader, StateReader
    from trident.replay.rehearsing import Rehearsed
    from trident.replay.verifying import ValueOrigin, Verified
    from trident.run.moving import Forgotten, Moved


def open_state(
    topology: TridentTopology | str,
    state: TridentState | str,
    conf: Config | Mapping[str, Any] | None = None,
    **settings: Any,
) -> StateReader:
    """Open a state for reading, whether its topology runs or not, in any process, without Spark. It is never written to.

    Parameters
    ----------
    topology
        As it is declared: the topology, or where it is found, as `"module:topology"` or `"path/to/module.py:topology"`.
    state
        What `persistent_aggregate` or `partition_persist` returned, or its name.
    conf, settings
        As for `TridentTopology.start`; `log_dir` names the log. By default it is that of the topology in its cluster, if
        the cluster that `TRIDENT_CLUSTER` names, or the folder `trident-cluster`, has it; else `trident-log/TOPOLOGY`.

    Returns
    -------
    StateReader
        A context manager with `multi_get(keys)`, `get()`, `get_tuples(prefix, limit)`, `top(count, by)`, `at(txid)`,
        `to_dataframe(spark)`, `to_pandas()`, `to_arrow()` and `txid`.

    Raises
    ------
    TopologyError
        There is no such topology, or it has no such state.
    UnsupportedOperation
        The state is in the memory of the process that runs the topology.
    LogError, ForeignLogError
        There is no log, or it belongs to another topology.

    Examples
    --------
    ::

        with trident.open_state("examples/word_count.py:topology", "count") as counts:
            print(counts.multi_get(["the", "cow"]), "after batch", counts.txid)
            for word, count in counts.get_tuples(prefix="th", limit=10):
                print(word, count)
    """
    from trident.read.state_reader import StateReader

    graph, config = _resolve(topology, conf, settings)
    return StateReader(graph, name_of_state(state), config)


def open_states(
    topology: TridentTopology | str,
    *states: TridentState | str,
    conf: Config | Mapping[str, Any] | None = None,
    **settings: Any,
) -> JointReader:
    """Open several states of a topology, in whatever stores they are, to read them as of one committed batch.

    Parameters
    ----------
    topology, states, conf, settings
        As for `open_state`, with its errors. The states are opaque.

    Returns
    -------
    JointReader
        A context manager with `read(function)`, `multi_get({state: keys})`, `to_dataframes(spark)` and `txid`.

    Raises
    ------
    ConfigError
        No state is named, or one twice.
    UnsupportedOperation
        A state is not opaque, or in the memory of the process that runs the topology.
    """
    from trident.read.state_reader import JointReader

    graph, config = _resolve(topology, conf, settings)
    return JointReader(graph, [name_of_state(state) for state in states], config)


def changes(
    topology: TridentTopology | str,
    state: TridentState | str,
    since: int | str | None = None,
    conf: Config | Mapping[str, Any] | None = None,
    **settings: Any,
) -> ChangeFeed:
    """Follow what each committed batch changes in a state, once and in order, from any process.

    Parameters
    ----------
    topology, state, conf, settings
        As for `open_state`, with its errors. The state is declared with `changes=`, in PostgreSQL or Redis.
    since
        The batch after which to begin: the `position` of a feed up to which its changes were processed, or the number
        of a batch. With a position it is noticed if the log was set back meanwhile and has other batches under these
        numbers. None: the last batch that is committed now.

    Returns
    -------
    ChangeFeed
        A context manager and an iterator over batches, each with its `txid` and its `changes`: `(key, before, after)`. `read()`
        returns the batches that are there now, `snapshot()` the rows of the state to begin with.

    Raises
    ------
    UnsupportedOperation
        The state keeps no changes.
    ValueError
        `since` is neither.
    """
    from trident.read.change_feed import ChangeFeed

    graph, config = _resolve(topology, conf, settings)
    return ChangeFeed(graph, name_of_state(state), config, since)


def move_state(
    topology: TridentTopology | str,
    state: TridentState | str,
    to: TridentTopology | str,
    conf: Config | Mapping[str, Any] | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
    called: str = "",
    **settings: Any,
) -> Moved:
    """Move a state to where another declaration of its topology has it: store, layout, place, number of partitions.

    No driver may run meanwhile; readers may. If it was interrupted, at whatever moment, call it again: it goes on.

    Parameters
    ----------
    topology, to
        The former declaration and the new one, as for `open_state`.
    state, conf, settings
        As for `open_state`.
    progress
        Called now and then with `"count"`, `"copy"` or `"compare"`, how many rows are done, and of how many (0: not known yet).
    called
        The name of the new declaration when the former one is refused; default: `to`, if that is a text.

    Raises
    ------
    LogHeldError
        A driver runs.
    TopologyError
        The declarations are of two topologies, or of states that mean different things.
    StateError
        The new place is not empty, a store does not belong to the log, or one cannot list its keys.
    """
    from trident.run.moving import move_state

    former, new, config = _both_resolved(topology, to, conf, settings)
    called = called or (to if isinstance(to, str) else "its new declaration")
    return move_state(former, new, name_of_state(state), called, config, progress)


def migrate_state(
    topology: TridentTopology | str,
    state: TridentState | str,
    conf: Config | Mapping[str, Any] | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
    **settings: Any,
) -> Moved:
    """Convert all values of a state that have former types to the type that it is declared with, by its `migrate=`.

    A topology does so by itself for each key that it reads, so this need not be called; afterwards no value of a former type
    is left, and `migrate=` can go. No driver may run meanwhile; readers may. Parameters as for `move_state`.

    Raises
    ------
    LogHeldError
        A driver runs.
    TopologyError
        The state has no `migrate=`, or its meaning has changed in a way that this does not cover.
    StateError
        A value cannot be migrated; the values before it are.
    """
    from trident.run.moving import migrate_state

    graph, config = _resolve(topology, conf, settings)
    return migrate_state(graph, name_of_state(state), config, progress)


def forget_keys(
    topology: TridentTopology | str,
    state: TridentState | str,
    keys: Sequence[Any],
    conf: Config | Mapping[str, Any] | None = None,
    **settings: Any,
) -> Forgotten:
    """Remove keys of a state for good: value, value before, their changes, and the dead letters that name them.

    No driver may run meanwhile; readers may. To the topology, the keys were never written: the next tuple of one starts
    it again. If it was interrupted, call it again: it goes on.

    Parameters
    ----------
    topology, state, conf, settings
        As for `open_state`.
    keys
        As for `multi_get`.

    Raises
    ------
    LogHeldError
        A driver runs.
    WrongKeyError
        One of them cannot be a key of the state.
    UnsupportedOperation
        The store cannot delete keys, or the state is a single value.
    """
    from trident.run.moving import forget_keys

    graph, config = _resolve(topology, conf, settings)
    return forget_keys(graph, name_of_state(state), keys, config)


def verify_state(
    topology: TridentTopology | str,
    *states: TridentState | str,
    keys: Sequence[Any] = (),
    share: float = 1.0,
    conf: Config | Mapping[str, Any] | None = None,
    progress: Callable[[int], None] = lambda _: None,
    **settings: Any,
) -> list[Verified]:
    """Recompute states from their sources, with the history of the log, and compare them with what the stores have.

    All batches are processed again in this process, with all states in memory; nothing is written anywhere. The topology may be
    running meanwhile.

    Parameters
    ----------
    topology, states, conf, settings
        As for `open_state`, with its errors; no states: all of them.
    keys
        Compare these keys only, of the one state that is named.
    share
        Compare this part of the keys, the same ones each time.
    progress
        Called with each batch that was processed.

    Returns
    -------
    list[Verified]
        For each state `equal`, the number of equal keys, and `wrong`: `(key, found, expected, since)`; `refused` says
        why a state that was not named cannot be verified. `txid` is the batch as of which it was, `notes` what else to know.

    Raises
    ------
    HistoryStartError
        The history does not begin with the first batch.
    ReplayFailedError
        A source does not have the rows of a batch any more, or gives others.
    UnsupportedOperation
        A state that is named, or a source, cannot be verified.
    """
    from trident.replay.verifying import verify_states

    graph, config = _resolve(topology, conf, settings)
    return verify_states(graph, [name_of_state(state) for state in states], config, keys, share, progress)


def rehearse_upgrade(
    topology: TridentTopology | str,
    to: TridentTopology | str,
    batches: int = 100,
    conf: Config | Mapping[str, Any] | None = None,
    **settings: Any,
) -> list[Rehearsed]:
    """Say which totals new code would change: the last batches run in former and new code, over what the stores have now.

    It is as if these batches came again. Nothing is written anywhere; the topology may be running.

    Parameters
    ----------
    topology, to, conf, settings
        The former declaration, the new one, and the rest as for `open_state`.
    batches
        How many of the last batches to run, as far as the history has them.

    Returns
    -------
    list[Rehearsed]
        For each state `equal`, the number of keys to which both give the same value, and `changed`:
        `(key, now, former, new)`; `refused` says why a state is not compared.

    Raises
    ------
    HistoryStartError
        The log has no batch.
    ReplayFailedError
        A batch fails in the former code or in the new one, or a source does not have its rows any more.
    UnsupportedOperation
        A declaration has windows over several batches, joins over time, or a source that cannot be read again.
    TopologyError
        The declarations are of two topologies.

    Examples
    --------
    ::

        for state in trident.rehearse_upgrade("orders.py:topology", "orders_new.py:topology", batches=50):
            for key, now, former, new in state.changed:
                print(state.state, key, "would become", new, "in place of", former)
    """
    from trident.replay.rehearsing import rehearse_upgrade

    return rehearse_upgrade(*_both_resolved(topology, to, conf, settings), batches)


def why(
    topology: TridentTopology | str,
    state: TridentState | str,
    key: Any = None,
    last: int | None = None,
    rows: int = 100,
    conf: Config | Mapping[str, Any] | None = None,
    **settings: Any,
) -> list[ValueOrigin]:
    """Say which batches, source positions and rows a value comes from: all batches are processed again, as by `verify_state`.

    Parameters
    ----------
    topology, state, conf, settings
        As for `open_state`. Errors are those of `verify_state`.
    key
        None: the state is a single value.
    last
        How many of the last batches that wrote the value; None: all.
    rows
        How many rows of each batch to keep.

    Returns
    -------
    list[ValueOrigin]
        For each batch that wrote the value, in order, `batch` (its record), `count` and `rows`, what they come to (`partial`),
        and the value `before` and `after`.

    Raises
    ------
    WrongKeyError
        The key cannot be one of the state.
    """
    from trident.replay.verifying import origins_of

    graph, config = _resolve(topology, conf, settings)
    return origins_of(graph, name_of_state(state), key, config, last, rows)


def _topology_of(topology: TridentTopology | str) -> TridentTopology:
    from trident.targets import load_topology

    return load_topology(topology) if isinstance(topology, str) else topology


_Conf = Config | Mapping[str, Any] | None


def _resolve(topology: TridentTopology | str, conf: _Conf, settings: Mapping[str, Any]) -> tuple[Graph, Config]:
    declared = _topology_of(topology)
    return declared.graph(), declared.settings(conf, **settings)


def _both_resolved(
    former: TridentTopology | str, new: TridentTopology | str, conf: _Conf, settings: Mapping[str, Any]
) -> tuple[Graph, Graph, Config]:
    from trident.targets import load_both

    if isinstance(former, str) and isinstance(new, str):
        former, new = load_both(former, new)
    graph, config = _resolve(former, conf, settings)
    return graph, _topology_of(new).graph(), config


def read_history(
    log_dir: str | os.PathLike[str], first: int = 1, last: int | None = None, since: datetime | None = None
) -> Iterator[CommitRecord]:
    """Yield the committed batches that a log still has, in order; its driver may be running.

    A record has the `txid` of the batch, the `attempt` that won, the definition of each of `spouts`, `counts`, and the time of
    the commit (`at_ms`, since 1970). One segment is in memory at a time.

    Parameters
    ----------
    log_dir
        The folder of the log, or its address.
    first, last
        The batches to begin and to end with, as far as they are kept.
    since
        Leave out batches that were committed before, by the clocks of their drivers.

    Raises
    ------
    HistoryGapError
        A piece is damaged or missing; all batches before it were given. The error says how to read what comes after it.
    LogError
        There is no log, or it cannot be read.
    """
    from trident.log.log_address import read_history as read

    return read(log_dir, first, last, since)
