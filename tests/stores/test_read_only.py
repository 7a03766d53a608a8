"""An instance that was opened to be read only writes nothing, whatever it is asked, and says so alike in every store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.stores.catalog import Home
from tests.stores.conftest import cases
from trident.errors import UnsupportedOperation
from trident.state.interfaces import StateConf
from trident.state.txid import Sentinel
from trident.testing.backend.store_under_test import Store

KEYS = [("the",), ("cow",)]


class Declared(Store):
    """States with declared fields, which columns need."""

    def conf(self, state: str = "state", topology: str | None = None, read_only: bool = False) -> StateConf:
        made = super().conf(state, topology, read_only)
        return replace(made, key_fields=(("word", "string"),), value_type="bigint", value_field="count")


@cases(lambda store: store.server is not None or store.name == "delta")
def test_a_reader_is_refused_each_write(name: str, home_of: Callable[[str], Home]) -> None:
    home = home_of(name)
    store = Declared(home.empty(), limits=home.store.limits)
    try:
        writer = store.writer()
        writer.commit([(key, 1) for key in KEYS], 1)
        before = store.map().read_sentinel()
        reader: Any = store.map(reads=True)
        for write in (
            lambda: reader.multi_put(KEYS, reader.multi_get(KEYS)),
            lambda: reader.multi_delete(KEYS),
            lambda: reader.move_sentinel(Sentinel("log", 9, 9), True),
            reader.reset,
        ):
            with pytest.raises(UnsupportedOperation, match=r"cannot .*: .* was opened to be read only"):
                write()
        assert store.map().read_sentinel() == before
        assert writer.read(KEYS) == [1, 1]
    finally:
        store.close()
