"""Both engines for every test that asks for `engine`; on Spark they share the session of the run."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["in_process", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "spark":
        request.getfixturevalue("spark")
    return name
