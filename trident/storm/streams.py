"""The streams of a component: what `declare_output_fields` declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike
from trident.spout.rich import OutputFieldsDeclarer

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
        """Declare a stream and its fields.

        Raises
        ------
        TopologyError
            The stream is declared already, its name is not valid, or the fields cannot be read.
        """
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
