"""`to_json`: any value as JSON; `plain`: as what JSON has; `json_answer`: as the answer to a request (needs starlette)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.responses import Response


def to_json(value: Any, not_finite: Callable[[float], Any] = lambda number: None) -> bytes:
    """Return a value as JSON in UTF-8; `not_finite` says what is written for a number that JSON has not."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError):
        text = json.dumps(plain(value, not_finite), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", errors="replace")


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    from starlette.responses import Response

    return Response(to_json(value), status, headers, "application/json")


def plain(value: Any, not_finite: Callable[[float], Any] = str) -> Any:
    """Return a value as JSON has it: finite numbers, texts, lists and mappings; all else as text."""
    if isinstance(value, Mapping):
        names = [plain(name) if isinstance(name, bytes) else str(name) for name in value]
        return dict(zip(names, [plain(each, not_finite) for each in value.values()], strict=True))
    if isinstance(value, list | tuple):
        return [plain(each, not_finite) for each in value]
    if isinstance(value, bytes):
        return value.replace(b"\\", rb"\\").decode(errors="backslashreplace")  # so that it can be read again
    if isinstance(value, float):
        return value if math.isfinite(value) else not_finite(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)
