"""A bolt that looks up a state of a Trident topology: the bridge from exact counts to single messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trident.errors import TopologyError
from trident.fields import Fields, FieldsLike
from trident.storm.interfaces import BaseBasicBolt, BasicOutputCollector, TopologyContext
from trident.storm.storm_tuples import StreamDeclarer, Tuple

if TYPE_CHECKING:
    from trident.read.state_reader import StateReader


class StateLookupBolt(BaseBasicBolt):
    """Emits each tuple with the value that a state has for its key, and the batch as of which that was read.

    Each lookup sees the last batch that the topology has committed, never part of one. The topology may run, or not, in any
    process; its state must be in a store. A key that is not there gives a null.

    Parameters
    ----------
    topology, state
        Where the topology is found, as `"module:topology"` or `"path/to/module.py:topology"`, and the name of its state.
    fields
        The fields that this bolt reads, with their types; they come first in what it emits.
    key
        The fields that are the key, all of them among `fields`, in the order of the state's key.
    value
        The one field with the value that was found, and its type.
    txid
        The name of the field with the batch, a bigint; None leaves it out.
    settings
        As for `trident.open_state`, e.g. `log_dir`.
    """

    def __init__(
        self,
        topology: str,
        state: str,
        *,
        fields: FieldsLike,
        key: FieldsLike,
        value: FieldsLike,
        txid: str | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(topology, str) or not isinstance(state, str):
            raise TopologyError(
                f"StateLookupBolt({topology!r}, {state!r}): give the topology as text, 'module:topology', and the state by its "
                "name; the bolt is sent to a worker, which loads them there"
            )
        self._topology, self._state = topology, state
        self._fields, self._key = Fields(fields), Fields(key).names
        self._fields.select(self._key, "that StateLookupBolt reads")
        found = Fields(value)
        if len(found) != 1:
            raise TopologyError(
                f"StateLookupBolt: value={value!r} must be one field, the one with the value of the state"
            )
        self._out = self._fields.concat(found)
        self._with_txid = txid is not None
        if txid is not None:
            self._out = self._out.concat(Fields(f"{txid}: bigint"))
        self._settings = settings

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        """Declare what was read, and what was found."""
        declarer.declare(self._out)

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        from trident.reading import open_state

        self._reader: StateReader = open_state(self._topology, self._state, **self._settings)

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        (found,) = self._reader.multi_get([[tuple[name] for name in self._key]])
        values = [*(tuple[name] for name in self._fields), found]
        collector.emit([*values, self._reader.txid] if self._with_txid else values)

    def cleanup(self) -> None:
        self._reader.close()
