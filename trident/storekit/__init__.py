"""The store kit: what every store needs, written once, for the stores of `states/` and for stores of your own.

Begin with `store_state.py`, which makes a state of options and a backing map. `record_fence.py` keeps the sentinel in a value
that is replaced by condition, `whole_commits.py` in the transaction of a commit. docs/writing-a-state.md shows a store.
"""

from trident.extras import Extra
from trident.servers.patience import Retries, by_count, by_size
from trident.setting_types import seconds, whole
from trident.state.sentinel import check_move, displaced
from trident.storekit.record_fence import (
    FieldsCodec,
    RecordCodec,
    RecordFence,
    Register,
    SentinelRecord,
    no_sentinel,
    refuse_read_only,
    sentinel_of,
    warn_of_eviction,
    warn_once,
)
from trident.storekit.store_state import (
    Account,
    Changing,
    Expiring,
    Kind,
    Kinds,
    MapOptions,
    ServerCalls,
    SpecKinds,
    StoreMapFactory,
    StoreOptions,
    StoreState,
    called_as,
    check_options,
    driver_package,
    kinds,
)
from trident.storekit.whole_commits import InTransaction, Puts, StoredRows, WholeCommitMap

__all__ = [
    "Account", "Changing", "Expiring", "Extra", "FieldsCodec", "InTransaction", "Kind", "Kinds", "MapOptions", "Puts",
    "RecordCodec", "RecordFence", "Register", "Retries", "SentinelRecord", "ServerCalls", "SpecKinds",
    "StoreMapFactory", "StoreOptions", "StoreState", "StoredRows", "WholeCommitMap", "by_count", "by_size",
    "called_as", "check_move", "check_options", "displaced", "driver_package", "kinds", "no_sentinel",
    "refuse_read_only", "seconds", "sentinel_of", "warn_of_eviction", "warn_once", "whole",
]  # fmt: skip
