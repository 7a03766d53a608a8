"""`verify_state` computes states again from the recorded batches, and compares them with the stores; `why` explains a value."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from trident.comparing import is_close
from trident.config import Config
from trident.errors import CorruptValueError, UnsupportedOperation, WrongKeyError
from trident.graph import Graph, JoinWithinNode, PersistNode, StateNode, WindowNode
from trident.log.records import CommitRecord
from trident.plan import make_plan
from trident.read.open_partitions import graph_to_read
from trident.read.state_reader import ForeignLog, StateReader
from trident.run.batch_replay import TOTAL, KeyWatch, Replay
from trident.run.moving import Side
from trident.state.encoding.codec import decode, encode, encode_keys
from trident.state.encoding.equal_keys import declared_keys, keys_of_list, typed_keys
from trident.state.interfaces import Key
from trident.state.values import OpaqueValue, TransactionalValue

Progress = Callable[[int], None]  # called with each batch that was processed
Chunks = Iterator[tuple[int, dict[Key, Any]]]
"""Keys of a store with their values, some at a time: as of which batch, and what is there. No batch is before the last one."""

_KEYS = 1000  # of one read


class WrongKey(NamedTuple):
    """A key that is not what the batches make of it, and since which batch, as far as the store says; None: absent."""

    key: Key
    found: Any  # in the store; None: absent
    expected: Any  # what it has to be
    since: str  # from which batch on, as far as the store says


@dataclass(frozen=True)
class Verified:
    """What became of one state, as of batch `txid`: how many keys are equal, which are wrong; or why it was refused."""

    state: str
    txid: int  # the batch after which store and computation were compared
    equal: int = 0  # how many keys
    wrong: Sequence[WrongKey] = ()
    refused: str = ""  # why the state was not compared; empty: it was
    notes: Sequence[str] = field(default=())  # what else to know


def verify_states(
    graph: Graph,
    names: Sequence[str],
    config: Config,
    keys: Sequence[Any] = (),
    share: float = 1.0,
    progress: Progress = lambda _: None,
) -> list[Verified]:
    """Compute states again and compare them with their stores; those that cannot be, and are named, are refused by an error."""
    refused = {state.name: why for state in graph.states if not state.static and (why := _refusal(graph, state))}
    for name in names:
        if graph.state(name).static:
            raise UnsupportedOperation(f"verify state {name!r}: no batch of topology {graph.name!r} writes it")
    _refuse_named(names, refused)
    if keys and len(names) != 1:
        raise WrongKeyError(f"verify the keys {list(keys)}: name the one state that they are keys of")
    if not 0 < share <= 1:
        raise ValueError(f"share={share}: give more than 0, and at most 1 for all keys")
    with Replay(graph, config) as replay:
        refused.update(replay.left_out)
        _refuse_named(names, refused)
        for record in replay.until():
            progress(record.txid)
        wanted = names or [state.name for state in graph.states if not state.static]
        return [
            Verified(name, replay.txid, refused=refused[name])
            if name in refused
            else _Comparison(graph, name, config, replay).run(keys, share)
            for name in wanted
        ]


def _refuse_named(names: Iterable[str], refused: Mapping[str, str]) -> None:
    for name in names:
        if name in refused:
            raise UnsupportedOperation(f"verify state {name!r}: {refused[name]}")


def _refusal(graph: Graph, state: StateNode) -> str:
    """Return why a state cannot be compared with what batches make of it; empty if it can."""
    facts = state.spec.facts
    if any(isinstance(node, WindowNode | JoinWithinNode) and node.state == state.name for node in graph.nodes):
        return "it keeps tuples of open windows, or of a join, in a form of its own; verify the state behind it"
    if facts.in_memory:
        return "it is in the memory of the process that runs the topology"
    if facts.forgets or facts.expires_after_s is not None:
        return "its store forgets or expires values, which no batch records"
    return ""


class _Comparison:
    """Compares one state with a replay, which goes on to the batch that the store is read at."""

    def __init__(self, graph: Graph, name: str, config: Config, replay: Replay) -> None:
        self._graph, self._node, self._config, self._replay = graph, graph.state(name), config, replay
        self._is_total = bool(len(self._node.value)) and not len(self._node.key_fields)
        self._notes = [replay.unsure[name]] if name in replay.unsure else []

    def run(self, keys: Sequence[Any], share: float) -> Verified:
        name, replay = self._node.name, self._replay
        with closing(StateReader(self._graph, name, self._config)) as reader:
            given = keys_of_list(keys, name) if keys else []
            if given and self._is_total:
                raise WrongKeyError(f"verify the keys {given} of state {name!r}: it is a single value; name no key")
            named = [key for key in declared_keys(given, self._node.key_fields, name) if key is not None]
            chunks = self._read(reader, named) if keys else self._all(reader, share)
            wrong, count = self._differing(chunks)
            if wrong:  # what is not opaque may have been read in the middle of a commit
                wrong, _ = self._differing(self._read(reader, list(wrong)))
            last = self._last_writes(list(wrong))
        own = dict(zip(wrong, replay.values_of(name, list(wrong)), strict=True))
        self._notes += [
            f"no batch has written the key {key[0] if len(key) == 1 else key!r}, and the store has no value for it"
            for key, stored in zip(named, replay.values_of(name, named), strict=True)
            if key not in wrong and (stored is None or stored.curr is None)
        ]
        keys_wrong = [WrongKey(key, *both, _since(own[key], last.get(key))) for key, both in wrong.items()]
        return Verified(name, replay.txid, count - len(wrong), keys_wrong, notes=self._notes)

    def _all(self, reader: StateReader, share: float) -> Chunks:
        """Read the keys in the store, then those that have to be there besides."""
        if self._is_total:
            yield from self._read(reader, [()])
            return
        there: set[Key] = set()
        try:
            for txid, some in self._list_store(reader, share):
                there.update(some)
                yield txid, some
        except UnsupportedOperation:
            self._notes.append("the store cannot list its keys, so keys that should not be there were not looked for")
        own = self._replay.keys(self._node.name)
        yield from self._read(reader, [key for key in own if key not in there and _is_in(key, share)])

    def _list_store(self, reader: StateReader, share: float) -> Chunks:
        some, txid = dict[Key, Any](), 0
        for *parts, value in reader.get_tuples():
            if some and (len(some) == _KEYS or reader.txid != txid):
                yield txid, some
                some = {}
            txid = reader.txid
            (key,) = typed_keys([tuple(parts)])  # all NaN are one key to the replay, too; 1 and 1.0 are two
            if _is_in(key, share):
                some[key] = value
        if some:
            yield txid, some

    def _read(self, reader: StateReader, keys: Sequence[Key]) -> Chunks:
        for start in range(0, len(keys), _KEYS):
            some = keys[start : start + _KEYS]
            values = [reader.get()] if self._is_total else reader.multi_get(some)
            yield reader.txid, dict(zip(some, values, strict=True))

    def _differing(self, chunks: Chunks) -> tuple[dict[Key, tuple[Any, Any]], int]:
        """Return the keys whose values differ at the batch that they are read at, with found and expected; and of how many."""
        differing, count = dict[Key, tuple[Any, Any]](), 0
        for txid, found in chunks:
            for _ in self._replay.until(txid):
                pass
            for key, stored in zip(found, self._replay.values_of(self._node.name, list(found)), strict=True):
                expected = None if stored is None else stored.curr
                count += found[key] is not None or expected is not None
                if not is_same(found[key], expected):
                    differing[key] = found[key], expected
        return differing, count

    def _last_writes(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """Return what the store has for keys, as it is; nothing of a store that is not asked key by key."""
        name, found = self._node.name, dict[Key, Any]()
        with ExitStack() as opened, suppress(UnsupportedOperation):
            with closing(ForeignLog(self._graph.name, self._config, [], "")) as log:
                plan = make_plan(graph_to_read(self._graph, log.now().declared, name))
                place = Side(plan, name, self._config, opened).open(log.partitions(name), read_only=True)
            total = {place.total: ()} if self._is_total and place.total is not None else {}
            stored = place.stored_rows(list(total) or keys)
            found.update((total.get(key, key), one) for key, one in stored.items())
        return found


def _since(own: OpaqueValue | None, found: Any) -> str:
    """Say since which batch a key is wrong, as far as its last write in the store shows it; `own` is what should be there."""
    if not isinstance(found, OpaqueValue | TransactionalValue):
        return "" if found is None or own is None else f"batch {own.txid} was the last one to write it"
    if own is None:
        return f"batch {found.txid} wrote it, but no batch has a row for it"
    if found.txid < own.txid:
        return (
            f"since a batch from {found.txid + 1} to {own.txid}: the store has no write of it after batch {found.txid}"
        )
    if found.txid > own.txid:
        return f"since batch {found.txid}, which has no row for it"
    if isinstance(found, OpaqueValue):
        return f"since batch {own.txid}" if is_same(found.prev, own.prev) else f"since a batch before {own.txid}"
    return f"at the latest since batch {own.txid}"


def _is_in(key: Key, share: float) -> bool:
    """Whether a key is in a share of all: the same keys each time."""
    if share == 1:
        return True
    place = int.from_bytes(blake2b(encode_keys([key])[0], digest_size=8).digest(), "big")
    return place < share * 2**64


def is_same(found: Any, expected: Any) -> bool:
    """Whether a value from a store is what was computed, as the store may show it; doubles but for the last digits."""
    if is_close(found, expected, in_all=0.0):
        return True
    with suppress(CorruptValueError):
        return is_close(found, decode(encode(expected)), in_all=0.0)
    return False


@dataclass(frozen=True)
class ValueOrigin:
    """What one batch did to a value.

    `batch` is as of `trident.read_history`; `count` of its rows have the key (None: an updater chose it), and `rows` are the
    first of them. They come to `partial`, which was combined with the value (None: a reducer or an updater made the new one).
    `before`, `after`: the value; None: absent.
    """

    batch: CommitRecord  # with what each source gave it, in `spouts`
    count: int | None
    rows: Sequence[Mapping[str, Any]]
    partial: Any
    before: Any
    after: Any


def origins_of(
    graph: Graph, name: str, key: Any, config: Config, last: int | None = None, rows: int = 100
) -> list[ValueOrigin]:
    """Return the batches that made a value, in order; see `trident.why`."""
    if graph.state(name).static:
        raise UnsupportedOperation(f"explain state {name!r}: no batch of topology {graph.name!r} writes it")
    (writer,) = (each for each in graph.nodes if isinstance(each, PersistNode) and each.state == name)
    if isinstance(writer, WindowNode | JoinWithinNode):
        raise UnsupportedOperation(
            f"explain state {name!r}: it keeps tuples of open windows, or of a join, in a form of its own. Ask for a value of "
            "the state behind it"
        )
    watch = KeyWatch(name, *_watched_key(graph, writer, key), most=rows)
    origins: deque[ValueOrigin] = deque(maxlen=last)
    with Replay(graph, config, watch) as replay:
        if name in replay.left_out:
            raise UnsupportedOperation(f"explain state {name!r}: {replay.left_out[name]}")
        before = None
        for batch in replay.until():
            (stored,) = replay.values_of(name, [watch.key])
            if stored is not None and stored.txid == batch.txid:
                count = None if writer.aggregation is None else watch.count
                (partial,) = watch.partials or [None]
                origins.append(ValueOrigin(batch, count, watch.rows, partial, before, stored.curr))
            before = None if stored is None else stored.curr
            watch.begin()
    return list(origins)


def _watched_key(graph: Graph, writer: PersistNode, key: Any) -> tuple[Key, Sequence[str]]:
    """Return the key as the state has it, and the fields of a row that are the key; None asks for a single value."""
    node, aggregation = graph.state(writer.state), writer.aggregation
    if aggregation is not None and not aggregation.group.names:
        if key is not None:
            raise WrongKeyError(f"explain key {key!r} of state {node.name!r}: it is a single value; name no key")
        return TOTAL, ()
    if key is None:
        names = ", ".join(node.key_fields.names) or "chosen by its updater"
        raise WrongKeyError(f"explain state {node.name!r}: it is a map; name the key ({names}) of the value")
    (wanted,) = declared_keys(keys_of_list([key], node.name), node.key_fields, node.name)
    if wanted is None:
        raise WrongKeyError(f"explain key {key!r} of state {node.name!r}: no key can be this one ({node.key_fields})")
    return wanted, () if aggregation is None else aggregation.group.names
