"""Operations: the interfaces that users implement, and the built-ins. Begin with `interfaces.py`, then `builtin.py`."""

from trident.counts import Counter
from trident.operations.assemblies import Assembly, FirstN
from trident.operations.builtin import (
    Count,
    CountAsAggregator,
    Debug,
    Equals,
    FilterNull,
    First,
    Last,
    MapGet,
    Max,
    MaxWithComparator,
    Min,
    MinWithComparator,
    Negate,
    SnapshotGet,
    Split,
    StringLength,
    Sum,
    TrueFilter,
    TupleCollectionGet,
    TuplifyArgs,
)
from trident.operations.expressions import Expression, coalesce, col, concat, greatest, if_else, least, lit
from trident.operations.interfaces import (
    Aggregator,
    ArrowFilter,
    ArrowFunction,
    BaseAggregator,
    BaseFilter,
    BaseFunction,
    BaseMultiReducer,
    BaseOperation,
    BaseQueryFunction,
    BaseStateUpdater,
    CombinerAggregator,
    Consumer,
    Filter,
    FlatMapFunction,
    Function,
    GroupedMultiReducer,
    MapFunction,
    MultiReducer,
    Operation,
    ReducerAggregator,
    TridentOperationContext,
    arrow_filter,
    arrow_function,
)
from trident.operations.several import ArgMax, ArgMin, Avg, Collect, CountDistinct, StdDev, TopN
from trident.operations.sql import sql
from trident.operations.windows import (
    KeyedProcess,
    SessionWindow,
    SlidingCountWindow,
    SlidingDurationWindow,
    Timers,
    TumblingCountWindow,
    TumblingDurationWindow,
    WindowConfig,
)

__all__ = [
    "Aggregator", "ArgMax", "ArgMin", "ArrowFilter", "ArrowFunction", "Assembly", "Avg", "BaseAggregator", "BaseFilter",
    "BaseFunction", "BaseMultiReducer", "BaseOperation", "BaseQueryFunction", "BaseStateUpdater", "Collect",
    "CombinerAggregator", "Consumer", "Count", "CountAsAggregator", "CountDistinct", "Counter", "Debug", "Equals",
    "Expression", "Filter", "FilterNull", "First", "FirstN", "FlatMapFunction", "Function", "GroupedMultiReducer",
    "KeyedProcess", "Last", "MapFunction", "MapGet", "Max", "MaxWithComparator", "Min", "MinWithComparator",
    "MultiReducer", "Negate", "Operation", "ReducerAggregator", "SessionWindow", "SlidingCountWindow",
    "SlidingDurationWindow", "SnapshotGet", "Split", "StdDev", "StringLength", "Sum", "Timers", "TopN",
    "TridentOperationContext", "TrueFilter", "TumblingCountWindow", "TumblingDurationWindow", "TupleCollectionGet",
    "TuplifyArgs", "WindowConfig", "arrow_filter", "arrow_function", "coalesce", "col", "concat", "greatest", "if_else",
    "least", "lit", "sql",
]  # fmt: skip
