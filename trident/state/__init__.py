"""State: interfaces, the maps that make a plain key-value store exact, their values, caches and serializers.

Begin with `backing_map.py` and `interfaces.py`, then `maps.py` and `values.py` (the rule of each kind), and `sentinel.py` (do
store and log belong together?). `encoding` turns keys and values into bytes.
"""

from trident.state.backing_map import BackingMap, MapFacts
from trident.state.cached import CachedBatchReadsMap, CachedMap, ReadThroughMap, SpacedCache
from trident.state.encoding.codec import decode, decode_keys, encode, encode_keys
from trident.state.encoding.serializers import (
    CodecSerializer,
    JSONNonTransactionalSerializer,
    JSONOpaqueSerializer,
    JSONTransactionalSerializer,
    Serializer,
    serializer_for,
)
from trident.state.forwarding import MapWrapper, MicroBatchIBackingMap, SerializedMap
from trident.state.interfaces import (
    IBackingMap,
    ITupleCollection,
    Key,
    MapState,
    QueryFunction,
    ReadOnlyMapState,
    ReadOnlySnapshottable,
    RemovableMapState,
    Snapshottable,
    State,
    StateConf,
    StateFactory,
    StateFacts,
    StateSpec,
    StateType,
    StateUpdater,
    StoreFacts,
    ValueUpdater,
    state_type,
)
from trident.state.map_state import (
    DEFAULT_SNAPSHOT_KEY,
    BackingMapFactory,
    MapStateFactory,
    SnapshottableMap,
    map_state,
)
from trident.state.maps import NonTransactionalMap, OpaqueMap, TransactionalMap, map_for
from trident.state.sentinel import SENTINEL_KEY, ReservedKeySentinel, check_sentinel, fenced
from trident.state.txid import EVERYTHING_WON, Sentinel, Snapshot, Txid, Winners
from trident.state.values import (
    CombinerUpdates,
    CombinerValueUpdater,
    OpaqueValue,
    ReducerValueUpdater,
    TransactionalValue,
)

__all__ = [
    "DEFAULT_SNAPSHOT_KEY", "EVERYTHING_WON", "SENTINEL_KEY", "BackingMap", "BackingMapFactory", "CachedBatchReadsMap",
    "CachedMap", "CodecSerializer", "CombinerUpdates", "CombinerValueUpdater", "IBackingMap", "ITupleCollection",
    "JSONNonTransactionalSerializer", "JSONOpaqueSerializer", "JSONTransactionalSerializer", "Key", "MapFacts",
    "MapState", "MapStateFactory", "MapWrapper", "MicroBatchIBackingMap", "NonTransactionalMap", "OpaqueMap",
    "OpaqueValue", "QueryFunction", "ReadOnlyMapState", "ReadOnlySnapshottable", "ReadThroughMap",
    "ReducerValueUpdater", "RemovableMapState", "ReservedKeySentinel", "Sentinel", "SerializedMap", "Serializer",
    "Snapshot", "Snapshottable", "SnapshottableMap", "SpacedCache", "State", "StateConf", "StateFactory", "StateFacts",
    "StateSpec", "StateType", "StateUpdater", "StoreFacts", "TransactionalMap", "TransactionalValue", "Txid",
    "ValueUpdater", "Winners", "check_sentinel", "decode", "decode_keys", "encode", "encode_keys", "fenced", "map_for",
    "map_state", "serializer_for", "state_type",
]  # fmt: skip
