"""What each module says it offers (`__all__`) is there; that it is sorted and complete, ruff finds (F401, RUF022, RUF068)."""

from __future__ import annotations

import importlib

from tests.house_figures import PRODUCT, ROOT, modules


def test_every_exported_name_is_there() -> None:
    offering = [path for path in modules(*PRODUCT) if "__all__" in path.read_text(encoding="utf-8")]
    assert ROOT / "trident" / "arrow.py" in offering
    for path in offering:
        loaded = importlib.import_module(
            ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        )
        missing = [name for name in getattr(loaded, "__all__", []) if not hasattr(loaded, name)]
        assert missing == [], f"{loaded.__name__}.__all__ names what it does not have"
