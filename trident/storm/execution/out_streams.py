"""A stream as one task emits to it: what fits, which tasks get a copy by the groupings of its readers, how many that were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import cycle
from random import Random
from typing import Any
from zlib import crc32

from trident.errors import CorruptValueError, TopologyError
from trident.fields import Fields, fields_of_struct, split_commas, struct_fields
from trident.naming import shown
from trident.state.encoding.codec import encode
from trident.state.encoding.equal_keys import canonical, canonical_key, declared_form
from trident.storm.interfaces import TopologyContext
from trident.storm.storm_topology import Grouping
from trident.storm.storm_tuples import Origin, StreamSpec
from trident.types import NO_VALUE, Form, class_of

_PLAIN: frozenset[type] = frozenset({str, int, float, bool, bytes, type(None)})
_NULL: frozenset[type] = frozenset({type(None)})


class OutStream:
    """One stream of one task.

    `further`: how many copies more than one of each tuple were sent. `only`: the chooser of a stream that one bolt reads.
    `one_value`: the classes that need no further look as the only value of a tuple; none if the stream has several fields.
    """

    __slots__ = (
        "_accepted", "_choosers", "_direct", "_forms", "_to_any", "emitted", "further", "one_value", "only", "origin", "width",
    )  # fmt: skip

    def __init__(
        self, origin: Origin, spec: StreamSpec, choosers: Sequence[Chooser], direct_to: frozenset[int]
    ) -> None:
        self.origin = origin
        self.width = len(spec.fields)
        self.emitted = 0
        self.further = 0
        self._choosers = (self._refuse_all,) if spec.direct else tuple(choosers)
        self.only = self._choosers[0] if len(self._choosers) == 1 else None
        self._direct = spec.direct
        self._to_any = direct_to
        classes = (_PLAIN if each is None else (_own_classes(each) & _PLAIN) | _NULL for each in spec.fields.types)
        self._accepted = tuple(classes)
        forms = enumerate(map(_form, spec.fields.types))
        self._forms = tuple((at, form) for at, form in forms if form is not None)
        self.one_value = self._accepted[0] if self.width == 1 and not self._forms else frozenset()

    @property
    def transferred(self) -> int:
        return self.emitted + self.further

    def accept(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values as they travel, equal ones in one form (R15); `TopologyError` for what does not fit."""
        if type(values) is not tuple:
            values = tuple(values) if type(values) is list else self._as_tuple(values)
        if len(values) != self.width:
            raise TopologyError(
                f"{self}: emitted {len(values)} values for its {self.width} fields {list(self.origin.fields)}: "
                f"{shown(values)}"
            )
        if self.width == 1:  # the most frequent width by far
            if type(values[0]) not in self._accepted[0]:
                self._check_types(values)
            return self._in_one_form(values) if self._forms else values
        for value, classes in zip(values, self._accepted):  # noqa: B905  the lengths were compared; strict costs time
            if type(value) not in classes:
                self._check_types(values)
                break
        return self._in_one_form(values) if self._forms else values

    def tasks(self, values: tuple[Any, ...]) -> Sequence[int]:
        only = self.only
        chosen = only(values) if only else [task for choose in self._choosers for task in choose(values)]
        self.emitted += 1
        self.further += len(chosen) - 1
        return chosen

    def direct_task(self, task: int) -> Sequence[int]:
        if not self._direct:
            raise TopologyError(f"{self} is not direct: declare it with direct=True, or use emit(values)")
        if task not in self._to_any:
            raise TopologyError(
                f"{self}: emit_direct to task {task!r}, which does not read it; "
                f"the tasks that do are {sorted(self._to_any) or 'none'}"
            )
        self.emitted += 1
        return (task,)

    def __str__(self) -> str:
        return f"stream {self.origin.stream!r} of component {self.origin.component!r} (task {self.origin.task})"

    def _refuse_all(self, values: Sequence[Any]) -> Sequence[int]:
        raise TopologyError(f"{self} is direct: name the task with emit_direct(task, values)")

    def _as_tuple(self, values: Sequence[Any]) -> tuple[Any, ...]:
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
            raise TopologyError(
                f"{self}: emitted {shown(values)}, a {type(values).__name__}; emit a list with one value for each field, "
                f"of {list(self.origin.fields)}"
            )
        return tuple(values)

    def _in_one_form(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        formed = list(values)
        for at, form in self._forms:
            if formed[at] is not None and (made := form(formed[at])) is NO_VALUE:
                self._check_types(values)  # says which one
            elif formed[at] is not None:
                formed[at] = made
        return tuple(formed)

    def _check_types(self, values: Sequence[Any]) -> None:
        for name, type_, value in zip(self.origin.fields.names, self.origin.fields.types, values, strict=True):
            for where, wrong in _misfits(type_, value, ""):
                place = f" at {name}{where}" if where else ""
                said = f"{shown(wrong)}, a {type(wrong).__name__}{place}, which is not such a value"
                raise TopologyError(f"{self}: field {name!r} is declared as {type_} but got {said}")
            try:
                encode(value)
            except CorruptValueError as error:
                raise TopologyError(
                    f"{self}: the value of field {name!r} cannot be sent to another worker: {error}"
                ) from error


@lru_cache(maxsize=1024)
def _own_classes(type_: str | None) -> frozenset[type]:
    own = class_of(type_)
    if own is None:
        return frozenset()
    return frozenset({own, int} if own in (float, Decimal) else {own})


def _misfits(type_: str | None, value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Give what within a value is not of its declared type, and where it lies: the rule of columns (R19)."""
    head, _, rest = (type_ or "").partition("<")
    if value is None or not head:
        return
    if not _has_class(head, type_, value) or (not rest and (form := _form(type_)) and form(value) is NO_VALUE):
        yield where, value
    elif rest:
        for of, one, place in _parts(head, rest[:-1], value):
            yield from _misfits(of, one, where + place)


def _has_class(head: str, type_: str | None, value: Any) -> bool:
    if head == "array":
        return isinstance(value, list | tuple)
    if head == "map":
        return isinstance(value, dict) and None not in value
    if head == "struct":
        return isinstance(value, dict) and value.keys() == set(fields_of_struct(type_))
    return value.__class__ in _own_classes(head)


def _parts(head: str, inner: str, value: Any) -> Iterator[tuple[str, Any, str]]:
    if head == "array":
        yield from ((inner, one, f"[{at}]") for at, one in enumerate(value))
    elif head == "map":
        of_key, of_item = split_commas(inner)
        for key, one in value.items():
            yield of_key.strip(), key, ".keys()"
            yield of_item.strip(), one, f"[{key!r}]"
    else:
        yield from ((of, value[name], f".{name}") for name, of in struct_fields(f"struct<{inner}>"))


@lru_cache(maxsize=1024)
def _form(type_: str | None) -> Form | None:
    """Return what gives a value of its type's classes the one form, `NO_VALUE` if the type has it not; None for any value."""
    head, _, rest = (type_ or "").partition("<")
    if rest:
        return _form_of_parts(head, rest[:-1])
    declared = declared_form(type_)
    if type_ == "float":  # not cut to 32 bits here, where no column holds it
        return lambda value: NO_VALUE if declared(value) is NO_VALUE else canonical(float(value))
    if type_ == "timestamp_ntz":
        return lambda value: NO_VALUE if value.tzinfo is not None else canonical(value)
    if type_ == "timestamp":
        return _in_utc
    return declared if class_of(type_) in (int, float, Decimal) else None


def _in_utc(value: Any) -> Any:
    try:
        return canonical(value)
    except OverflowError:  # before the year 1 there, or behind the year 9999
        return NO_VALUE


def _form_of_parts(head: str, inner: str) -> Form:
    """Return what gives each part of an array, map or struct its one form; the parts are of their types."""
    if head == "array":
        one = _form_or_null(inner)
        return lambda value: list(map(one, value))
    if head == "map":
        key, item = (_form_or_null(each.strip()) for each in split_commas(inner))

        def form(value: dict[Any, Any]) -> dict[Any, Any]:
            formed = {key(each): item(of) for each, of in value.items()}
            return formed if len(formed) == len(value) else value  # two keys that are NaN stay two

        return form
    parts = {name: _form_or_null(of) for name, of in struct_fields(f"struct<{inner}>")}
    return lambda value: {name: form(value[name]) for name, form in parts.items()}


def _form_or_null(type_: str) -> Form:
    form = _form(type_)
    return lambda value: value if value is None or form is None else form(value)


Chooser = Callable[[Sequence[Any]], Sequence[int]]

_REMEMBERED = 1 << 16


def chooser_of(
    grouping: Grouping,
    origin: Origin,
    context: TopologyContext,
    tasks: Sequence[int],
    local: Sequence[int],
    random: Random,
) -> Chooser:
    """Return what a grouping does for one emitting task; `local` are those of the reading `tasks` that run in its worker."""
    positions = [origin.fields.position(name) for name in grouping.fields]
    match grouping.kind:
        case "fields":
            return _by_hash(positions, origin.fields, tasks)
        case "partial_key":
            return _lesser_of_two(positions, tasks)
        case "all":
            every = tuple(tasks)
            return lambda values: every
        case "global":
            lowest = (min(tasks),)
            return lambda values: lowest
        case "local_or_shuffle":
            return _in_turn(local or tasks, random)
        case "custom":
            return _custom(grouping, origin, context, tasks)
        case _:
            return _in_turn(tasks, random)


def _in_turn(tasks: Sequence[int], random: Random) -> Chooser:
    """A shuffled round: every task gets its turn, and emitters do not all begin with the same one."""
    following = cycle([(task,) for task in random.sample(list(tasks), len(tasks))]).__next__
    return lambda values: following()


def _by_hash(positions: Sequence[int], fields: Fields, tasks: Sequence[int]) -> Chooser:
    choices = [(task,) for task in tasks]
    count = len(choices)
    if count == 1:
        (only,) = choices
        return lambda values: only

    def choose_by_hash(key: Sequence[Any]) -> tuple[int]:
        return choices[crc32(_routing_bytes(key)) % count]

    if len(positions) > 1:
        return lambda values: choose_by_hash([values[at] for at in positions])
    (position,) = positions
    if class_of(fields.types[position]) in (str, bytes, int):
        remembered = _Remembered(choose_by_hash)
        return lambda values: remembered[values[position]]
    of_class = {each: _Remembered(choose_by_hash) for each in (str, int, bytes)}

    def of_any(values: Sequence[Any]) -> tuple[int]:
        value = values[position]
        known = of_class.get(type(value))
        return choose_by_hash([value]) if known is None else known[value]

    return of_any


def _routing_bytes(key: Sequence[Any]) -> bytes:
    """Return the bytes that choose the task of a key: the same for keys that are equal, whatever the order of a dict."""
    try:
        if not _PLAIN.issuperset(map(type, key)):
            key = list(map(_in_order, key))
        return encode(canonical_key(tuple(key)))
    except OverflowError as error:
        raise TopologyError(f"grouping by {shown(key)}: {error} in UTC, the one form of a moment") from error


def _in_order(part: Any) -> Any:
    if isinstance(part, list):
        return list(map(_in_order, part))
    if isinstance(part, tuple):
        return tuple(map(_in_order, part))
    if isinstance(part, set):
        return set(map(canonical, part))
    if isinstance(part, dict):
        return sorted(([_in_order(key), _in_order(of)] for key, of in part.items()), key=lambda pair: encode(pair[0]))
    return canonical(part)


class _Remembered(dict[Any, tuple[int]]):
    """The tasks of values of one class and of None. Values of two classes may be equal, and belong to two tasks."""

    def __init__(self, hashed: Callable[[Sequence[Any]], tuple[int]]) -> None:
        super().__init__()
        self._hashed = hashed

    def __missing__(self, value: Any) -> tuple[int]:
        if len(self) >= _REMEMBERED:
            self.clear()
        self[value] = found = self._hashed([value])
        return found


def _lesser_of_two(positions: Sequence[int], tasks: Sequence[int]) -> Chooser:
    sent, count = dict.fromkeys(tasks, 0), len(tasks)

    def choose(values: Sequence[Any]) -> tuple[int]:
        data = _routing_bytes([values[at] for at in positions])
        first = crc32(data) % count
        second = (first + 1 + crc32(data[::-1]) % (count - 1)) % count if count > 1 else first  # never the same one
        chosen = min(tasks[first], tasks[second], key=sent.__getitem__)
        sent[chosen] += 1
        return (chosen,)

    return choose


def _custom(grouping: Grouping, origin: Origin, context: TopologyContext, tasks: Sequence[int]) -> Chooser:
    chooser = grouping.chooser
    assert chooser is not None
    known = frozenset(tasks)
    chooser.prepare(context, (origin.component, origin.stream), tuple(tasks))

    def choose(values: Sequence[Any]) -> Sequence[int]:
        chosen = tuple(chooser.choose_tasks(context.task_id, values))
        if not known.issuperset(chosen):
            raise TopologyError(
                f"{type(chooser).__name__}.choose_tasks for stream {origin.stream!r} of component {origin.component!r} "
                f"returned {chosen}; the tasks to choose from are {tuple(tasks)}"
            )
        return chosen

    return choose
