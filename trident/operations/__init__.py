"""Operations: the interfaces that users implement, and the built-ins.

Begin with `interfaces.py`, then `builtin.py` (`Count`, `Sum`, `Split` …). `adapters.py` makes operations of plain functions,
`vectorised.py` of functions over Arrow arrays; `expressions.py` has `col` and `lit`. How Arrow tables pass through operations
is in `trident.runtime.steps`.
"""

from trident.operations.assemblies import Assembly, FirstN
from trident.operations.builtin import (
    Count,
    Debug,
    FilterNull,
    First,
    Last,
    MapGet,
    Max,
    Min,
    SnapshotGet,
    Split,
    Sum,
    TupleCollectionGet,
)
from trident.operations.comparators import MaxWithComparator, MinWithComparator
from trident.operations.expressions import Expression, coalesce, col, if_else, lit
from trident.operations.filters import Equals, Negate
from trident.operations.interfaces import (
    Aggregator,
    BaseAggregator,
    BaseFilter,
    BaseFunction,
    BaseOperation,
    BaseQueryFunction,
    BaseStateUpdater,
    CombinerAggregator,
    Consumer,
    Filter,
    FlatMapFunction,
    Function,
    MapFunction,
    Operation,
    ReducerAggregator,
    TridentOperationContext,
)
from trident.operations.metrics import Counter
from trident.operations.multi import BaseMultiReducer, GroupedMultiReducer, MultiReducer
from trident.operations.testing import CountAsAggregator, StringLength, TrueFilter, TuplifyArgs
from trident.operations.vectorised import ArrowFilter, ArrowFunction, arrow_filter, arrow_function
from trident.operations.windows import (
    SlidingCountWindow,
    SlidingDurationWindow,
    TumblingCountWindow,
    TumblingDurationWindow,
    WindowConfig,
)

__all__ = [
    "Aggregator",
    "ArrowFilter",
    "ArrowFunction",
    "Assembly",
    "BaseAggregator",
    "BaseFilter",
    "BaseFunction",
    "BaseMultiReducer",
    "BaseOperation",
    "BaseQueryFunction",
    "BaseStateUpdater",
    "CombinerAggregator",
    "Consumer",
    "Count",
    "CountAsAggregator",
    "Counter",
    "Debug",
    "Equals",
    "Expression",
    "Filter",
    "FilterNull",
    "First",
    "FirstN",
    "FlatMapFunction",
    "Function",
    "GroupedMultiReducer",
    "Last",
    "MapFunction",
    "MapGet",
    "Max",
    "MaxWithComparator",
    "Min",
    "MinWithComparator",
    "MultiReducer",
    "Negate",
    "Operation",
    "ReducerAggregator",
    "SlidingCountWindow",
    "SlidingDurationWindow",
    "SnapshotGet",
    "Split",
    "StringLength",
    "Sum",
    "TridentOperationContext",
    "TrueFilter",
    "TumblingCountWindow",
    "TumblingDurationWindow",
    "TupleCollectionGet",
    "TuplifyArgs",
    "WindowConfig",
    "arrow_filter",
    "arrow_function",
    "coalesce",
    "col",
    "if_else",
    "lit",
]
