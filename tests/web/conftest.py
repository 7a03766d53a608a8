"""A browser for each module of tests of the page."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.web.chromium import open_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with open_browser() as found:
        yield found
