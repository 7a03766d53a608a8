"""Plain functions as operations, and the types of what operations emit.

A plain function given with input fields (`each("line", f, "word")`, `filter("n", f)`) gets their values as arguments; one
given without (`map(f)`, `flat_map(f)`, `peek(f)`, `filter(f)`) gets the whole `TridentTuple`. A generator emits what it
yields; any other function emits exactly what it returns, None included.
"""

import collections.abc
import inspect
import re
import typing
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from trident.errors import TopologyError
from trident.fields import Fields, is_nested, quote_if_needed, struct_type, type_of_hint, widens
from trident.operations.builtin import (
    Count,
    First,
    Last,
    MapGet,
    Max,
    Min,
    SnapshotGet,
    Split,
    StringLength,
    Sum,
    TupleCollectionGet,
)
from trident.operations.expressions import Expression
from trident.operations.interfaces import (
    ArrowFilter,
    ArrowFunction,
    Consumer,
    Filter,
    FlatMapFunction,
    Function,
    MapFunction,
    Operation,
    function_name,
)
from trident.roles import has
from trident.state.interfaces import StateSpec, StateType
from trident.tuples import TridentCollector, TridentTuple
from trident.types import family_of, total_type

_ITERABLES = (collections.abc.Iterator, collections.abc.Iterable, collections.abc.Generator)


class _Plain(Operation):
    """A plain function; `spread` if it takes the values as arguments."""

    METHOD: ClassVar[str] = "execute"  # that may be given in its place
    VECTORISED: ClassVar[tuple[type[Operation], ...]] = (ArrowFunction,)  # as well

    def __init__(self, function: Callable[..., Any], spread: bool) -> None:
        self.function, self.spread = function, spread
        self.output_types = _hinted_types(function, self.yields)

    @property
    def yields(self) -> bool:
        return inspect.isgeneratorfunction(self.function)

    @property
    def name(self) -> str:
        return function_name(self.function)

    def __call__(self, tuple: TridentTuple) -> Any:
        return self.function(*tuple) if self.spread else self.function(tuple)


class PlainFunction(_Plain, Function):
    """A function or generator used in `each`."""

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        if self.yields:
            for values in self(tuple):
                collector.emit(values)
        else:
            collector.emit(self(tuple))


class PlainFilter(_Plain, Filter):
    """A predicate."""

    METHOD = "is_keep"
    VECTORISED = (ArrowFilter,)

    def is_keep(self, tuple: TridentTuple) -> bool:
        return bool(self(tuple))


class PlainMap(_Plain, MapFunction):
    """A function used in `map`."""

    execute = _Plain.__call__


class PlainFlatMap(_Plain, FlatMapFunction):
    """A function or generator used in `flat_map`."""

    yields = True  # what flat_map returns is iterated, whether it yields or not
    execute = _Plain.__call__


class PlainConsumer(_Plain, Consumer):
    """A function used in `peek`."""

    METHOD = "accept"
    VECTORISED = ()
    accept = _Plain.__call__


def adapt(operation: Any, plain: type[_Plain], spread: bool, stream: str) -> Any:
    """Return `operation` itself if it is vectorised or has the one method, else the plain function wrapped."""
    method = plain.METHOD
    if isinstance(operation, plain.VECTORISED):
        if isinstance(operation, ArrowFunction) and (not len(operation.output) or None in operation.output.types):
            raise TopologyError(
                f"stream {stream!r}: {operation.name} does not say what it gives: set its attribute output to fields with "
                "types, Fields('length: int')"
            )
        return operation
    if has(operation, method):
        if inspect.isclass(operation):
            raise TopologyError(
                f"stream {stream!r} got the class {operation.__name__}; give an object: {operation.__name__}()"
            )
        return operation
    if isinstance(operation, Expression):
        raise TopologyError(f"stream {stream!r} got the expression {operation!r}; select and where take expressions")
    if isinstance(operation, (ArrowFilter, ArrowFunction)):
        kind = "filter" if isinstance(operation, ArrowFilter) else "function"
        raise TopologyError(f"stream {stream!r} got the vectorised {kind} {operation.name}, which does not belong here")
    if callable(operation):
        return plain(operation, spread)
    instead = "; where takes SQL text" if plain is PlainFilter and isinstance(operation, str) else ""
    raise TopologyError(
        f"stream {stream!r} got {operation!r} ({type(operation).__name__}); "
        f"expected a function or an object with a method {method!r}{instead}"
    )


def output_fields(operation: Any, out: Fields, stream: str) -> Fields:
    """Return `out` with every type filled in from the operation; `TopologyError` if it is unknown."""
    declared: Sequence[str | None] | None = None
    if isinstance(operation, ArrowFunction):
        declared = operation.output.types
    elif has(operation, "output_types"):
        declared = operation.output_types
    if declared is not None and len(declared) != len(out):
        raise TopologyError(
            f"stream {stream!r}: {_name(operation)} emits {len(declared)} values ({', '.join(map(str, declared))}), "
            f"but {len(out)} output fields are named: {list(out.names)}"
        )
    types = [own or (declared[i] if declared is not None else None) for i, own in enumerate(out.types)]
    unknown = [name for name, type_ in zip(out.names, types, strict=True) if type_ is None]
    if unknown:
        raise TopologyError(
            f"stream {stream!r}: the type of field {unknown[0]!r} that {_name(operation)} emits is not known. "
            f"Write it in the field list ('{quote_if_needed(unknown[0])}: string'), give the function a return type hint, "
            "or the operation an attribute output_types"
        )
    return Fields.of(out.names, types)


def refuse_missing_output(call: str, operation: Any, out: Fields | None, stream: str) -> None:
    """Raise `TopologyError` for an operation that gives values where no field is named for them."""
    if out is not None or isinstance(operation, type) or has(operation, "is_keep"):
        return
    hinted = _hinted_types(operation, inspect.isgeneratorfunction(operation)) if inspect.isfunction(operation) else None
    gives = any(has(operation, method) for method in ("execute", "combine", "reduce", "complete"))
    if gives or hinted not in (None, ["boolean"]):
        name = function_name(operation)
        shown = name if inspect.isfunction(operation) else f"{name}()"
        raise TopologyError(
            f"stream {stream!r}: {call} of {name} does not say what its output is called. Name it after the operation: "
            f"{call}(…, {shown}, {name.lower()!r})"
        )


def refuse_migration(migrate: Any, spec: StateSpec, value: Fields, state: str) -> None:
    """Raise `TopologyError` for a `migrate=` that cannot make values of a state's declared type."""
    declared, what = value.types[0], f"state {state!r}: migrate=a function"
    if not callable(migrate):
        raise TopologyError(
            f"state {state!r}: migrate={migrate!r} is not a function (value, former type); further aggregates and wider types "
            "need none"
        )
    if spec.kind is not StateType.OPAQUE:
        raise TopologyError(f"{what} takes an opaque state, whose values say which attempt wrote them")
    if declared is None:
        raise TopologyError(f"{what}: declare the type of {value.names[0]!r}, as in '{value.names[0]}: bigint'")
    hinted = _hinted_types(migrate, False)
    is_of = hinted is None or re.split("[(<]", hinted[0])[0] == re.split("[(<]", declared)[0]
    if hinted is not None and not (is_of or widens(hinted[0], declared) or widens(declared, hinted[0])):
        raise TopologyError(f"{what} returns {', '.join(hinted)}, and {value.names[0]!r} is declared as {declared}")


def aggregate_type(aggregator: Any, inputs: Fields, out: Fields, stream: str) -> Fields:
    if len(out) != 1:
        raise TopologyError(f"stream {stream!r}: an aggregate has one output field, not {list(out.names)}")
    own = built_in_type(aggregator, inputs, out, stream)
    if own is not None:
        return Fields.of(out.names, [own])
    if out.types[0] is None and not has(aggregator, "output_types"):
        for method in ("combine", "reduce", "zero", "init"):
            hinted = _hinted_types(getattr(aggregator, method, None), yields=False)
            if hinted is not None:
                return Fields.of(out.names, hinted)
    return output_fields(aggregator, out, stream)


def query_types(function: Any, row_types: Sequence[str | None], out: Fields, stream: str) -> Fields:
    """Return the output fields of a query; the built-in ones give the types that the state's rows have."""
    known = tuple(row_types)
    if isinstance(function, (MapGet, SnapshotGet)):
        known = known[-1:]
    elif not isinstance(function, TupleCollectionGet):
        known = ()
    if len(known) == len(out) and None not in known and not any(out.types):
        return Fields.of(out.names, known)
    return output_fields(function, out, stream)


def _name(operation: Any) -> str:
    return operation.name if isinstance(operation, (_Plain, ArrowFunction)) else type(operation).__name__


def _hinted_types(function: Any, yields: bool) -> Sequence[str] | None:
    if function is None:
        return None
    try:
        hint = typing.get_type_hints(function).get("return")
    except (NameError, TypeError):  # a hint that only a type checker can resolve
        return None
    if yields:
        if typing.get_origin(hint) not in (*_ITERABLES, list, collections.abc.Sequence):
            return None
        hint = next(iter(typing.get_args(hint)), None)
    parts = typing.get_args(hint) if typing.get_origin(hint) is tuple else (hint,)
    types = [type_of_hint(part) for part in parts]
    return None if not types or None in types else typing.cast("list[str]", types)


def built_in_type(aggregator: Any, inputs: Fields, out: Fields, stream: str) -> str | None:
    """Return the type of a built-in aggregator's output field, None for another one; `TopologyError` if it does not fit."""
    if isinstance(aggregator, (Sum, Min)) and len(inputs) != 1:
        raise TopologyError(
            f"stream {stream!r}: {type(aggregator).__name__} takes one input field, not {list(inputs.names)}; "
            "name it before the aggregator, or as of= of exactly_once"
        )
    if isinstance(aggregator, Min) and is_nested(inputs.types[0]):
        raise TopologyError(
            f"stream {stream!r}: {type(aggregator).__name__} cannot order field {inputs.names[0]!r}, which is {inputs.types[0]}"
        )
    if isinstance(aggregator, Last):
        _check_last(aggregator, inputs, stream)
    own = _type_of(aggregator, inputs, stream)
    if own is None or out.types[0] is None:
        return own
    if type(aggregator) in (Count, Sum, Min, Max, First, Last) and _family(out.types[0]) != _family(own):
        raise TopologyError(
            f"stream {stream!r}: {type(aggregator).__name__} gives {own}, but its output field {out.names[0]!r} is declared "
            f"{out.types[0]}; leave the type out, or change it behind the aggregate with select or map"
        )
    return out.types[0]


def _check_last(aggregator: Last, inputs: Fields, stream: str) -> None:
    name, by = type(aggregator).__name__, aggregator.by
    if not len(inputs):
        raise TopologyError(f"stream {stream!r}: {name} takes the fields to keep; name at least one before it")
    if by is None:
        return
    if by not in inputs:
        raise TopologyError(
            f"stream {stream!r}: {name}(by={by!r}) keeps ({inputs}), which has no field {by!r}; name it among the input "
            "fields, because it is kept beside the others"
        )
    if len(inputs) == 1:
        raise TopologyError(
            f"stream {stream!r}: {name}(by={by!r}) keeps nothing but its order; name the fields to keep beside {by!r}, or use "
            f"{'Min' if isinstance(aggregator, First) else 'Max'}()"
        )
    if is_nested(inputs.type_of(by)):
        raise TopologyError(f"stream {stream!r}: {name} cannot order by {by!r}, which is {inputs.type_of(by)}")


def _type_of(aggregator: Any, inputs: Fields, stream: str) -> str | None:
    if isinstance(aggregator, Sum):
        total = total_type(inputs.types[0])
        if total is None:
            raise TopologyError(
                f"stream {stream!r}: Sum needs a number, but field {inputs.names[0]!r} is {inputs.types[0]}"
            )
        return total
    if isinstance(aggregator, Min):
        return inputs.types[0]
    if isinstance(aggregator, Last):
        single = aggregator.by is None and len(inputs) == 1
        return inputs.types[0] if single else struct_type(inputs.names, [type_ or "" for type_ in inputs.types])
    return "bigint" if type(aggregator) is Count else None


def _family(type_: str) -> str:
    """Return the family of a type: its types hold each other's values if they are wide enough. All numbers are one."""
    return "number" if family_of(type_) == "decimal" else family_of(type_)


def check_texts(operation: Any, inputs: Fields, stream: str) -> None:
    """Refuse a field that is not a text for the built-ins that take one; a subclass of them may take something else."""
    if type(operation) in (Split, StringLength) and inputs.types != ("string",):
        raise TopologyError(
            f"stream {stream!r}: {type(operation).__name__} takes one field of type string, but got ({inputs}); name one, "
            "and make it text with each or select if it is not"
        )


def check_query(function: Any, inputs: Fields, key: Fields, value: Fields, state: str, stream: str) -> None:
    """Refuse a built-in query that cannot find anything in a state made by `persistent_aggregate`."""
    if not len(value):  # the queries of a state of another kind are unknown
        return
    if isinstance(function, SnapshotGet) and len(key):
        raise TopologyError(
            f"stream {stream!r}: SnapshotGet reads a single value, but state {state!r} has one per key ({key}); use MapGet "
            "with the fields that hold the key"
        )
    if not isinstance(function, MapGet):
        return
    if not len(key):
        raise TopologyError(
            f"stream {stream!r}: MapGet looks up keys, but state {state!r} is a single value; use SnapshotGet"
        )
    families = [[_family(type_ or "") for type_ in fields.types] for fields in (inputs, key)]
    if families[0] != families[1]:
        raise TopologyError(
            f"stream {stream!r}: state {state!r} has the key ({key}), but the query looks up ({inputs}); name as many fields, "
            "of the same types in the same order"
        )
