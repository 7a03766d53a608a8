"""Deliveries as bytes.

A frame is its kind, the task that it is for, and a body. Numbers of trees travel as arrays of 64-bit integers. Tuples travel
in sections, one for each task and stream that they come from; all values of all sections are packed in one call, by the
types of the codec (`trident/state/encoding/extensions.py`). Nothing is unpickled.
"""

from __future__ import annotations

import struct
import sys
import threading
from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain, islice, repeat
from typing import Any, NoReturn

from trident.errors import CorruptValueError, TopologyError
from trident.state.encoding.codec import encode
from trident.state.encoding.extensions import new_packer, unpack
from trident.storm.execution.messages import Body, Delivery, Outcomes, Tracking
from trident.storm.storm_topology import StormTopology, TaskLayout
from trident.storm.storm_tuples import Origin, SentTuple, ids_of, sent_tuple

_HEAD = struct.Struct("<BI")
_FOUR, _THREE = struct.Struct("<4I"), struct.Struct("<3I")
_TUPLES, _TRACKING, _OUTCOMES, _FULL, _FREE = range(5)
_SWAPPED = sys.byteorder == "big"

Marks = tuple[bool, list[int]]
"""Whether tasks are full, and which."""


class Encoder:
    """Encodes deliveries; any thread may."""

    def __init__(self, topology: StormTopology) -> None:
        self._streams = {name: list(spec.streams) for name, spec in topology.components.items()}
        self._of_thread = threading.local()

    def encode(self, task: int, body: Body) -> bytes:
        """Return the frame of a delivery.

        Raises `TopologyError`: a value cannot be sent; the message names component, stream and field.
        """
        match body:
            case Tracking():
                parts = (body.begun, body.acked, body.failed, body.extended)
                return _HEAD.pack(_TRACKING, task) + _FOUR.pack(*map(len, parts)) + _words(chain(*parts))
            case Outcomes():
                roots = (body.acked, body.failed, body.extended)
                return _HEAD.pack(_OUTCOMES, task) + _THREE.pack(*map(len, roots)) + _words(chain(*roots))
            case _:
                return _HEAD.pack(_TUPLES, task) + self._pack(body)

    def _pack(self, tuples: list[SentTuple]) -> bytes:
        origins = {origin for _, origin, _, _ in tuples}
        if len(origins) == 1:
            sections = [self._section(origins.pop(), tuples)]
        else:
            sections = [self._section(one, [each for each in tuples if each[1] is one]) for one in origins]
        try:
            packed: bytes = self._packer().pack(sections)
        except (CorruptValueError, UnicodeEncodeError, ValueError, OverflowError, RecursionError) as error:
            _refuse(tuples, error)
        return packed

    def _packer(self) -> Any:
        try:
            return self._of_thread.packer
        except AttributeError:
            self._of_thread.packer = new_packer()
            return self._of_thread.packer

    def _section(self, origin: Origin, tuples: list[SentTuple]) -> list[Any]:
        rows, _, roots, edges = zip(*tuples, strict=True)
        values = list(chain.from_iterable(rows))
        stream = self._streams[origin.component].index(origin.stream)
        if set(map(type, roots)) == {int}:
            return [origin.task, stream, len(tuples), values, None, _words(roots), _words(edges)]
        ids = list(map(ids_of, roots, edges))
        numbers = _words(chain.from_iterable(ids)), _words(chain.from_iterable([each.values() for each in ids]))
        return [origin.task, stream, len(tuples), values, _words(map(len, ids)), *numbers]


class Decoder:
    """Decodes the frames of deliveries. What it returns for damaged bytes is an error, of any kind."""

    def __init__(self, topology: StormTopology, layout: TaskLayout) -> None:
        self._topology, self._component_of = topology, layout.component_of
        self._origin = cache(self._new_origin)  # the same object for all tuples of one task and stream

    def decode(self, frame: bytes) -> Delivery:
        """Return the delivery in a frame."""
        kind, task = _HEAD.unpack_from(frame)
        match kind:
            case 0:  # _TUPLES
                tuples: list[SentTuple] = []
                for section in unpack(memoryview(frame)[_HEAD.size :]):
                    tuples += self._tuples(*section)
                return task, tuples
            case 1:  # _TRACKING
                return task, Tracking(*_parts(frame, _FOUR))
            case 2:  # _OUTCOMES
                return task, Outcomes(*_parts(frame, _THREE))
        raise ValueError(f"frames of kind {kind} are unknown")

    def _tuples(
        self, task: int, stream: int, count: int, values: list[Any], counts: bytes | None, roots: bytes, edges: bytes
    ) -> Iterable[SentTuple]:
        origin = self._origin(task, stream)
        width = len(origin.fields)
        if len(values) != count * width:
            raise ValueError(f"{count} tuples of {width} fields have {len(values)} values")
        rows = zip(*[iter(values)] * width, strict=True) if width else repeat((), count)
        of_roots, of_edges = _numbers(roots), _numbers(edges)
        if len(of_roots) != len(of_edges):
            raise ValueError(f"{len(of_roots)} roots have {len(of_edges)} edges")
        if counts is None:
            if len(of_roots) != count:
                raise ValueError(f"{count} tuples have {len(of_roots)} roots")
            return zip(rows, repeat(origin), of_roots, of_edges)
        sizes, pairs = _numbers(counts), zip(of_roots, of_edges, strict=True)
        if len(sizes) != count or sum(sizes) != len(of_roots):
            raise ValueError(f"{count} tuples have {len(sizes)} numbers of trees, for {len(of_roots)} roots")
        return [sent_tuple(row, origin, dict(islice(pairs, size))) for row, size in zip(rows, sizes, strict=True)]

    def _new_origin(self, task: int, stream: int) -> Origin:
        component = self._component_of[task]
        name, spec = list(self._topology.components[component].streams.items())[stream]
        return Origin(component, task, name, spec.fields)


def encode_marks(full: bool, tasks: Sequence[int]) -> bytes:
    """Return the frame that says that the queues of tasks are full, or that they have room again."""
    return _HEAD.pack(_FULL if full else _FREE, 0) + _words(tasks)


def marks_of(frame: bytes) -> Marks | None:
    """Return the marks in a frame; None if it has none."""
    kind, _ = _HEAD.unpack_from(frame)
    return (kind == _FULL, _numbers(frame[_HEAD.size :])) if kind in (_FULL, _FREE) else None


def _words(numbers: Iterable[int]) -> bytes:
    words = array("Q", numbers)
    if _SWAPPED:
        words.byteswap()
    return words.tobytes()


def _numbers(data: bytes) -> list[int]:
    words = array("Q", data)
    if _SWAPPED:
        words.byteswap()
    return words.tolist()


def _parts(frame: bytes, lengths: struct.Struct) -> Iterable[list[int]]:
    sizes = lengths.unpack_from(frame, _HEAD.size)
    numbers = _numbers(frame[_HEAD.size + lengths.size :])
    if sum(sizes) != len(numbers):
        raise ValueError(f"{sum(sizes)} numbers were announced, {len(numbers)} came")
    at = 0
    for size in sizes:
        yield numbers[at : at + size]
        at += size


def _refuse(tuples: list[SentTuple], error: Exception) -> NoReturn:
    """Say which value cannot be sent."""
    for values, origin, _, _ in tuples:
        for name, value in zip(origin.fields.names, values, strict=True):
            try:
                encode(value)
            except CorruptValueError as cause:
                raise TopologyError(
                    f"component {origin.component!r} (task {origin.task}) emits to stream "
                    f"{origin.stream!r}, in field {name!r}, what cannot be sent to another worker: {cause}"
                ) from error
    raise error
