"""IRichSpout, the spout of Storm's core: tuples one by one, each with an id that is acknowledged or failed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Protocol, runtime_checkable

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike
from trident.roles import Role, missing
from trident.spout.interfaces import IBatchSpout, ITridentSpout, SourceLife
from trident.spout.partitioned import PartitionedSpout


@dataclass(frozen=True)
class TopologyContext:
    """Where a spout runs: the name of its stream, the number of this instance, from 0, and how many there are."""

    component: str
    task: int = 0
    tasks: int = 1


class SpoutOutputCollector(Protocol):
    """Takes what `next_tuple` emits."""

    def emit(self, values: Sequence[Any], message_id: Any = None, stream_id: str = "default") -> None:
        """Emit a tuple. With a `message_id`, which may be any object, `ack` or `fail` is called with it later."""


class OutputFieldsDeclarer:
    """Takes the fields of a spout, as Storm does."""

    def __init__(self) -> None:
        self.fields: Fields | None = None

    def declare(self, *fields: FieldsLike) -> None:
        """Declare the fields with their types, as in `declarer.declare("word: string")`."""
        self.fields = Fields(*fields)


@runtime_checkable
class IRichSpout(Protocol):
    """Emits tuples one by one; `ack` and `fail` report, by message id, what became of them. All calls come from one thread.

    It also has `get_output_fields()`, or `declare_output_fields(declarer)`. At-least-once, so its promise is that of a
    non-transactional spout.
    """

    def open(self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Connect; called once, before the first tuple."""

    def next_tuple(self) -> None:
        """Emit the next tuple, or several; emit nothing if there is none now, without waiting for one."""

    def ack(self, msg_id: Any) -> None:
        """The batch with this tuple is committed: never emit it again."""

    def fail(self, msg_id: Any) -> None:
        """An attempt at the batch with this tuple has ended: emit it again."""

    def close(self) -> None:
        """Release everything."""


@runtime_checkable
class DeclaresOutputFields(Protocol):
    """A spout that declares its fields in Storm's way."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Call `declarer.declare`."""


@runtime_checkable
class GivesOutputFields(Protocol):
    """A spout that returns its fields."""

    def get_output_fields(self) -> Fields:
        """Return the fields with their types."""


@runtime_checkable
class Activated(Protocol):
    """A spout that is notified when tuples are asked for."""

    def activate(self) -> None:
        """From now on `next_tuple` is called."""

    def deactivate(self) -> None:
        """From now on it is not called."""


class RichSpoutDefaults(SourceLife, Role):
    """What an `IRichSpout` may have besides in a Trident topology."""

    max_batch_size = 1000  # how many tuples of it a batch has at most; as in Storm


def fields_of_rich_spout(spout: Any) -> Fields:
    """Return the fields that a spout gives or declares."""
    if isinstance(spout, GivesOutputFields):
        return spout.get_output_fields()
    declarer = OutputFieldsDeclarer()
    if isinstance(spout, DeclaresOutputFields):
        spout.declare_output_fields(declarer)
    if declarer.fields is None:
        raise TopologyError(
            f"{type(spout).__name__} does not say its fields: give it get_output_fields(), which returns them, or "
            'declare_output_fields(declarer), which calls declarer.declare("word: string")'
        )
    return declarer.fields


AnySpout = ITridentSpout | PartitionedSpout | IBatchSpout | IRichSpout

_STRUCTURAL: tuple[type, ...] = (ITridentSpout, IBatchSpout, IRichSpout)


def fields_of_spout(stream: str, spout: Any) -> Fields:
    """Return the output fields of any spout; `TopologyError` that names what is missing if it is none."""
    if not isinstance(spout, type):
        if isinstance(spout, (PartitionedSpout, ITridentSpout, IBatchSpout)):
            fields: Fields = spout.get_output_fields()
            return fields
        if isinstance(spout, IRichSpout):
            return fields_of_rich_spout(spout)
    raise TopologyError(
        f"stream {stream!r} got {type(spout).__name__}, which is not a spout. {_lacks(spout)} (trident.spout)"
    )


def _lacks(spout: Any) -> str:
    """Say what is missing, of the interface that the object comes nearest to."""
    if isinstance(spout, type):
        return f"It is a class; give an object: {spout.__name__}(...)"
    lacks = {kind.__name__: list(missing(spout, kind)) for kind in _STRUCTURAL}
    has = {kind.__name__: len(list(missing(object(), kind))) - len(lacks[kind.__name__]) for kind in _STRUCTURAL}
    nearest = max(has, key=lambda name: (has[name], -len(lacks[name])))
    if isinstance(spout, (str, PathLike)):
        return f"It only names a place. TextFileSpout({str(spout)!r}) reads the files of a folder"
    if not has[nearest]:
        return "It has none of the methods of ITridentSpout, IBatchSpout or IRichSpout"
    said = f"For {nearest} it lacks {', '.join(lacks[nearest])}"
    if nearest == "ITridentSpout":
        said += "; a partitioned spout is a subclass of IPartitionedTridentSpout or IOpaquePartitionedTridentSpout"
    return said
