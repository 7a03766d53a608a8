"""`Tuple`: what a bolt gets, with where it came from and its place in the tuple trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trident.fields import Fields
from trident.storm.streams import SYSTEM, TICK_STREAM
from trident.tuples import TypedValues


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """What all tuples that one task emits to one stream have in common. Equal only to itself, so that its hash is cheap."""

    component: str
    task: int
    stream: str
    fields: Fields


class Tuple(TypedValues):
    """The values that a component emitted: by index, by field name (`tuple["word"]`) or by typed getter.

    Two tuples are equal only if they are the same one, so a bolt may keep them as keys of a dict until it answers them.
    """

    # `root` is the root of its tree, None outside of all trees, and `edge` its id there: two numbers, because nearly every
    # tuple is in one tree. `others` is {root: its id there} for further trees, None without. `edges` is the xor of the edges
    # to the tuples that are anchored to this one. `holder` is the collector that must answer it, None when it is answered.
    # `started` is the moment at which its execution began, 0 if it is none of the sampled ones.
    __slots__ = ("edge", "edges", "holder", "origin", "others", "root", "started", "values")

    def __init__(
        self,
        values: tuple[Any, ...],
        origin: Origin,
        root: int | None = None,
        edge: int = 0,
        others: dict[int, int] | None = None,
    ) -> None:
        self.values = values
        self.origin = origin
        self.root = root
        self.edge = edge
        self.others = others
        self.edges = 0
        self.holder: object = None
        self.started = 0.0

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
    def ids(self) -> dict[int, int]:
        """Its id in each tree that it belongs to, by root."""
        return {} if self.root is None else {self.root: self.edge, **(self.others or {})}

    @property
    def roots(self) -> frozenset[int]:
        """The 64-bit ids of the spout tuples whose trees it belongs to; empty if it is not tracked."""
        return frozenset(self.ids)

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


def tuple_of(values: tuple[Any, ...], origin: Origin, ids: dict[int, int]) -> Tuple:
    """Return a tuple that is in any number of trees."""
    if not ids:
        return Tuple(values, origin)
    (root, edge), *others = ids.items()
    return Tuple(values, origin, root, edge, dict(others) or None)
