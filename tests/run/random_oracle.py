"""What a `Case` must give: a plain fold over its rows, which knows nothing of partitions, stores and engines."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.run.random_cases import PARTITIONINGS, UNTYPED, UNTYPED_KEYS, Case, Row

Rows = list[tuple[Row, Any, int]]
"""Key, value and time of each row; the time is the number of the batch."""

Content = dict[Row, Any]
"""What a state holds: by the form of its key; of a state without keys by the empty tuple."""


@dataclass
class Expected:
    """What each state holds after each batch, from none on; `after["total"][2]` is the main one's after batch 2."""

    after: dict[str, list[Content]] = field(default_factory=dict)


def form(part: Any) -> Any:
    """Return one form for all values of a declared type that are one key: Python agrees, but for NaN."""
    return "NaN" if part != part else part


def form_of(case: Case, key: Row) -> Row:
    """Return one form for all that is one key. A key without a declared type keeps the type of its value."""
    return tuple((type(form(part)).__name__, form(part)) if UNTYPED in case.key else form(part) for part in key)


def _identity(case: Case, key: Row) -> Row:
    return form_of(case, tuple(UNTYPED_KEYS[int(part)] if UNTYPED in case.key else part for part in key))


def expected(case: Case) -> Expected:
    found = Expected()
    batches = [_stepped(case, [(row[:-1], row[-1], txid) for row in rows]) for txid, rows in enumerate(case.batches, 1)]
    grouped = [_by_key(case, rows) for rows in batches]
    main, updated = _persisted(case, grouped)
    found.after["total"] = main
    for tap in case.taps:
        found.after[tap] = _TAPS[tap](case, batches, grouped, main, updated)
    return found


def may_conflict(case: Case) -> bool:
    """Whether two partitions of a state may get one key in one batch: then the topology ends, and the error names the key.

    Which partition gets a tuple is not defined behind `shuffle`, nor that of a spout's part.
    """
    if not case.is_updated or all(life.hint == 1 for life in case.lives):
        return False
    partitioned = [step.name for step in case.steps if step.name in _PARTITIONS]
    one_part = case.partitions < 2 and all(life.parallelism == 1 for life in case.lives)
    rows_of_one = 2 if any(step.name in ("flat_map", "merge") for step in case.steps) else 1
    together = partitioned[-1] in _TOGETHER if partitioned else one_part
    return not together and any(
        len({_identity(case, row[:-1]) for row in rows}) < len(rows) * rows_of_one for rows in case.batches
    )


_TOGETHER = ("partition_by", "global_", "batch_global", "sum")
"""Behind these all tuples of a key are in one partition."""
_PARTITIONS = (*PARTITIONINGS, "sum")


def _stepped(case: Case, rows: Rows) -> Rows:
    for step in case.steps:
        if (change := _CHANGES.get(step.name)) is not None:
            rows = list(change(rows))
    return rows


def _summed(rows: Rows) -> Rows:
    sums: dict[Row, tuple[Row, int, int]] = {}
    for key, value, at in rows:
        one = tuple(map(form, key))
        sums[one] = (key, sums.get(one, (key, 0, at))[1] + (value or 0), at)
    return list(sums.values())


_CHANGES: dict[str, Callable[[Rows], Iterable[tuple[Row, Any, int]]]] = {
    "filter": lambda rows: (row for row in rows if row[1] is not None and row[1] > 0),
    "where": lambda rows: (row for row in rows if row[1] is not None and row[1] >= 0),
    "map": lambda rows: ((key, None if value is None else value + 1, at) for key, value, at in rows),
    "flat_map": lambda rows: (row for row in rows for _ in range(2)),
    "sum": _summed,
    "merge": lambda rows: [*rows, *rows],
}


def _by_key(case: Case, rows: Rows) -> dict[Row, list[Any]]:
    groups: dict[Row, list[Any]] = {}
    for key, value, _ in rows:
        groups.setdefault(_identity(case, key) if case.grouped else (), []).append(value)
    return groups


def _sum(before: Any, values: list[Any]) -> Any:
    return (before or 0) + sum(value or 0 for value in values)


def _max(before: Any, values: list[Any]) -> Any:
    return max((value for value in [before, *values] if value is not None), default=None)


_FOLDS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "sum": _sum,
    "rowwise sum": _sum,
    "reduce": _sum,
    "map": _sum,
    "map, removing": _sum,
    "count": lambda before, values: (before or 0) + len(values),
    "max": _max,
}
_REMOVES = ("map, removing",)
"""A key whose rows of a batch add up to less than nothing is removed."""
_WRITES_IF_EMPTY = ("sum", "rowwise sum", "count")
"""Combiners with a `zero()`: without a key they give a value in a batch without rows too."""


def _persisted(case: Case, grouped: list[dict[Row, list[Any]]]) -> tuple[list[Content], list[Content]]:
    """Return the content after each batch, and what each batch updated."""
    content: Content = {}
    contents, updates = [content], []
    for groups in grouped:
        if not case.grouped and not groups and case.update in _WRITES_IF_EMPTY:
            groups = {(): []}
        removed = {key for key, values in groups.items() if case.update in _REMOVES and _sum(0, values) < 0}
        update = {
            key: _FOLDS[case.update](content.get(key), values) for key, values in groups.items() if key not in removed
        }
        content = {key: value for key, value in {**content, **update}.items() if key not in removed}
        contents.append(content)
        updates.append(update)
    return contents, updates


def _totals(batches: Iterable[Iterable[tuple[Row, int]]]) -> list[Content]:
    content: Content = {}
    contents = [content]
    for pairs in batches:
        content = defaultdict(int, content)
        for key, value in pairs:
            content[key] += value
        content = dict(content)
        contents.append(content)
    return contents


def _new_values(case: Case, batches: Any, grouped: Any, main: Any, updated: list[Content]) -> list[Content]:
    # Without a key the totals behind it have none either; they are written in every batch, by their `zero()`.
    return _totals(
        [*((key, value or 0) for key, value in update.items()), *([] if case.grouped else [((), 0)])]
        for update in updated
    )


def _query(
    case: Case, batches: list[Rows], grouped: Any, main: list[Content], updated: Any, then: int = 0
) -> list[Content]:
    return _totals(
        [
            (_identity(case, key), main[txid + then].get(_identity(case, key) if case.grouped else ()) or 0)
            for key, _, _ in rows
        ]
        for txid, rows in enumerate(batches)
    )


def _query_this(case: Case, batches: list[Rows], grouped: Any, main: list[Content], updated: Any) -> list[Content]:
    return _query(case, batches, grouped, main, updated, then=1)


def _window(case: Case, batches: list[Rows], grouped: Any, main: Any, updated: Any) -> list[Content]:
    """The window of a batch fires in the next one with rows."""
    fired, waiting = [], list[tuple[Row, int]]()
    for rows in batches:
        fired.append(waiting if rows else [])
        if rows:
            waiting = [(_identity(case, key), value or 0) for key, value, _ in rows]
    return _totals(fired)


def static_rows(case: Case) -> dict[Row, int]:
    """Return what a static state holds: every second key, in the spelling that came first."""
    keys = {_identity(case, row[:-1]): row[:-1] for rows in reversed(case.batches) for row in reversed(rows)}
    return {key: number for number, key in enumerate(keys.values()) if number % 2}


def _static(case: Case, batches: list[Rows], grouped: Any, main: Any, updated: Any) -> list[Content]:
    there = {_identity(case, key): value for key, value in static_rows(case).items()}
    pairs = ([_identity(case, key) for key, _, _ in rows] for rows in batches)
    return _totals([(key, there.get(key, 0)) for key in keys] for keys in pairs)


def _count_window(case: Case, batches: list[Rows], grouped: Any, main: Any, updated: Any) -> list[Content]:
    """After every second row of a key the number of its last three."""
    seen: dict[Row, int] = defaultdict(int)
    fired = []
    for rows in batches:
        fired.append(list[tuple[Row, int]]())
        for key in (_identity(case, key) for key, _, _ in rows):
            seen[key] += 1
            if seen[key] % 2 == 0:
                fired[-1].append((key, min(3, seen[key])))
    return _totals(fired)


def _outer_join(case: Case, batches: list[Rows], grouped: Any, main: Any, updated: Any) -> list[Content]:
    """The sum of each key's positive rows joined with its other rows, of which any side may be missing."""
    joined = []
    for rows in batches:
        sums: dict[Row, int] = {}
        others: dict[Row, list[int]] = {}
        for key, value, _ in rows:
            one = _identity(case, key)
            if value is not None and value > 0:
                sums[one] = sums.get(one, 0) + value
            else:
                others.setdefault(one, []).append(value or 0)
        joined.append(
            [(key, sums.get(key, 0) + 100 * w + 1) for key in {**sums, **others} for w in others.get(key, [0])]
        )
    return _totals(joined)


def _join(case: Case, batches: list[Rows], grouped: Any, main: Any, updated: Any) -> list[Content]:
    """The sum of each key joined with its rows: as many as there are rows."""
    return _totals([(_identity(case, key), 1) for key, _, _ in rows] for rows in batches)


def _join_within(case: Case, batches: list[Rows], grouped: Any, main: Any, updated: Any) -> list[Content]:
    """The rows of each batch joined with the same rows and with those of the batch before, which is as long ago as it may.

    Unlike a join within a batch, a key with a null meets nothing.
    """
    met = []
    for txid, rows in enumerate(batches):
        earlier = [*(batches[txid - 1] if txid else []), *rows]
        met.append(
            [
                (_identity(case, right), 1)
                for right, _, _ in rows
                for left, _, _ in earlier
                if None not in left and _identity(case, left) == _identity(case, right)
            ]
        )
    return _totals(met)


_TAPS: dict[str, Callable[..., list[Content]]] = {
    "new values": _new_values,
    "query": _query,
    "query this batch": _query_this,
    "static": _static,
    "window": _window,
    "sessions": _window,
    "count window": _count_window,
    "join": _join,
    "outer join": _outer_join,
    "join within": _join_within,
}
