"""The streams of a component, as `declare_output_fields` declares them, and `Tuple`: what a bolt gets over them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike
from trident.spout.rich import OutputFieldsDeclarer
from trident.tuples import TypedValues

DEFAULT_STREAM = "default"
SYSTEM = "__system"
TICK_STREAM = "__tick"


@dataclass(frozen=True)
class StreamSpec:
    """The fields of a stream; `direct` if its emitter names the task that gets each tuple."""

    fields: Fields
    direct: bool = False


class StreamDeclarer(OutputFieldsDeclarer):
    """Takes the streams of a component, each with its fields.

    A type after a name is checked at each emit (`"word: string"`); a name alone accepts every value.
    """

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component
        self._streams: dict[str, StreamSpec] = {}

    @property
    def streams(self) -> Mapping[str, StreamSpec]:
        """What was declared, by stream."""
        return self._streams

    def declare(self, *fields: FieldsLike, direct: bool = False) -> None:
        self.declare_stream(DEFAULT_STREAM, *fields, direct=direct)

    def declare_stream(self, stream_id: str, *fields: FieldsLike, direct: bool = False) -> None:
        """Declare a stream and its fields; `TopologyError` if its name is taken or not valid, or they cannot be read."""
        if not isinstance(stream_id, str) or not stream_id or stream_id.startswith("__"):
            raise TopologyError(
                f"declare stream {stream_id!r} of component {self._component!r}: a stream's name is a text that does not "
                "begin with '__'"
            )
        if stream_id in self._streams:
            raise TopologyError(f"component {self._component!r} declares stream {stream_id!r} twice")
        self._streams[stream_id] = StreamSpec(Fields(*fields), direct)
        if stream_id == DEFAULT_STREAM:
            self.fields = self._streams[stream_id].fields


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """What all tuples that one task emits to one stream have in common. Equal only to itself, so that its hash is cheap."""

    component: str
    task: int
    stream: str
    fields: Fields


Trees = int | dict[int, int] | None
"""The root of a tuple's tree; {root: its id there} if it is in several trees, None if it is in none."""

SentTuple = tuple[tuple[Any, ...], Origin, Trees, int]
"""One copy of a tuple on its way to a task: values, origin, trees, and its id in its tree if that is one."""


class Tuple(TypedValues):
    """The values that a component emitted: by index, by field name (`tuple["word"]`) or by typed getter.

    Two tuples are equal only if they are the same one, so a bolt may keep them as keys of a dict until it answers them.
    """

    # `root` and `edge` as in `SentTuple`; then each edge to a tuple that is anchored to this one is xored into `edge`, which
    # so is what its answer tells its tree. `holder` has the totals of the task that must answer it (`Counts`).
    # `started` is the moment at which its execution began, 0 if it is none of the sampled ones.
    # There is no `__init__`, which would take longer than all the rest that a tuple costs: executors set what it has.
    __slots__ = ("edge", "holder", "origin", "root", "started", "values")

    values: tuple[Any, ...]
    origin: Origin
    root: Trees
    edge: int
    holder: Any
    started: float

    @property
    def fields(self) -> Fields:
        """The names (and types) of the values."""
        return self.origin.fields

    @property
    def source_component(self) -> str:
        """The component that emitted it."""
        return self.origin.component

    @property
    def source_task(self) -> int:
        """The id of the task that emitted it."""
        return self.origin.task

    @property
    def source_stream_id(self) -> str:
        """The stream to which it was emitted."""
        return self.origin.stream

    @property
    def is_tick(self) -> bool:
        """Whether the system sent it because time has passed (`tick_tuple_freq_s`)."""
        return self.origin.stream == TICK_STREAM and self.origin.component == SYSTEM

    @property
    def roots(self) -> frozenset[int]:
        """The 64-bit ids of the spout tuples whose trees it belongs to; empty if it is not tracked."""
        return frozenset(ids_of(self.root, 0))

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __getitem__(self, index: Any) -> Any:
        if index.__class__ is str:
            return self.values[self.origin.fields.position(index)]
        return self.values[index]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={value!r}" for name, value in zip(self.origin.fields.names, self.values, strict=False)
        )
        return f"Tuple({shown}; from {self.origin.component}, task {self.origin.task}, stream {self.origin.stream!r})"


def ids_of(trees: Trees, edge: int) -> dict[int, int]:
    if trees is None:
        return {}
    return trees if isinstance(trees, dict) else {trees: edge}


def sent_tuple(values: tuple[Any, ...], origin: Origin, ids: dict[int, int]) -> SentTuple:
    if len(ids) > 1:
        return values, origin, ids, 0
    for root, edge in ids.items():
        return values, origin, root, edge
    return values, origin, None, 0
