"""The types that built-in operations take and give, checked at the declaration."""

from __future__ import annotations

from typing import Any

from trident.errors import TopologyError
from trident.fields import Fields, is_nested, struct_type
from trident.operations.builtin import Count, First, Last, MapGet, Max, Min, SnapshotGet, Split, Sum
from trident.operations.testing import StringLength
from trident.types import family_of, simple_type


def built_in_type(aggregator: Any, inputs: Fields, out: Fields, stream: str) -> str | None:
    """Return the type of the output field of a built-in aggregator; None for any other aggregator.

    Raises `TopologyError`: another number of input fields than it takes, a type that it cannot take, or an output that it
    cannot give.
    """
    if isinstance(aggregator, (Sum, Min)) and len(inputs) != 1:
        raise TopologyError(
            f"stream {stream!r}: {type(aggregator).__name__} takes one input field, not {list(inputs.names)}"
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


def total_type(type_: str | None) -> str | None:
    """Return the type of a sum of numbers of a type; None if they are none."""
    known = simple_type(type_)
    if known is None or known.family not in ("number", "decimal"):
        return None
    return {int: "bigint", float: "double"}.get(known.python, f"decimal(38,{known.digits[1]})")


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
        return _last_type(aggregator, inputs)
    return "bigint" if type(aggregator) is Count else None


def _last_type(aggregator: Last, inputs: Fields) -> str | None:
    if aggregator.by is None and len(inputs) == 1:
        return inputs.types[0]
    return struct_type(inputs.names, [type_ or "" for type_ in inputs.types])


def _family(type_: str) -> str:
    """Return the family of a type.

    Types of one family hold each other's values if they are wide enough; all numbers are one family.
    """
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
