"""How much is still to be read: tile, line, REST and metrics say the same, in one unit of bytes, and how long it takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, expect

from spouts import FeederBatchSpout, FixedBatchSpout, TextFileSpout
from states.memory import MemoryMapState
from tests.harness.commands import until
from tests.ui.chromium import opened, tile
from tests.ui.page_servers import get, trident_server
from trident import TridentTopology
from trident.naming import amount
from trident.operations import Count
from trident.runtime.running import RunningTopology
from trident.ui.ui_server import UIServer

pytestmark = pytest.mark.slow

SEEN = "/api/v1/topology/seen"
LINE = b"one line of forty bytes, with its end..\n"


def seen(*sources: Any) -> TridentTopology:
    topology = TridentTopology("seen")
    streams = [topology.new_stream(name, spout) for name, spout in zip(("files", "clicks"), sources, strict=True)]
    lines = topology.merge("line", *streams)
    lines.group_by("line").persistent_aggregate(MemoryMapState(), Count(), "count")
    return topology


@pytest.fixture
def one_is_idle(tmp_path: Path) -> Iterator[tuple[RunningTopology, UIServer]]:
    """A source of 200,000 bytes of which one batch was read, and one that had nothing yet, so it cannot say."""
    (tmp_path / "lines.txt").write_bytes(LINE * 5_000)
    files = TextFileSpout(str(tmp_path / "*.txt"), max_batch_bytes=2_048)
    conf = {"batch_emit_interval_ms": 600_000, "metrics_port": 0}
    with trident_server(seen(files, FeederBatchSpout("line: string")), conf=conf) as (running, server):
        until(lambda: running.status["batches"] == 1)
        yield running, server


def test_what_one_source_has_is_the_lag_if_another_does_not_say(one_is_idle: tuple[RunningTopology, UIServer]) -> None:
    running, server = one_is_idle
    page = get(server, f"{SEEN}?window=600")
    [left] = page["lags"]
    assert {each["source"]: each["lag"] for each in page["sources"]} == {"files": left, "clicks": None}
    assert 190_000 < left["amount"] < 200_000
    assert get(server, f"{SEEN}/series?window=600")["lags"]["bytes"][-1] == left["amount"]
    assert page["lagTrend"] is None  # of all sources it is not known
    with urlopen(str(running.metrics_url)) as answer:
        metrics = re.findall(r"^trident_source_lag\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert list(map(float, metrics)) == [left["amount"]]
    assert running.at_work.left == f"{amount(left['amount'], 'bytes')} to be read"


def test_a_lag_in_bytes_says_how_long_it_takes_at_the_rate_of_now(
    one_is_idle: tuple[RunningTopology, UIServer],
) -> None:
    _, server = one_is_idle
    files, clicks = get(server, SEEN)["sources"]
    rate = files["tuplesPerSecond"] * len(LINE)
    assert files["secondsBehind"] == pytest.approx(files["lag"]["amount"] / rate)
    assert clicks["secondsBehind"] is None


def test_lags_of_one_unit_are_one_sum() -> None:
    rows = [["a"], ["b"], ["c"], ["d"]]
    with trident_server(
        seen(*(FixedBatchSpout("line", 1, *rows) for _ in range(2))), conf={"batch_emit_interval_ms": 600_000}
    ) as (running, server):
        until(lambda: running.status["batches"] == 1)
        assert get(server, SEEN)["lags"] == [{"amount": 6, "unit": "records"}]
        assert get(server, f"{SEEN}/series")["lags"] == {"records": [6]}


def test_tile_and_line_agree_and_name_the_source_that_does_not_say(
    browser: Browser, one_is_idle: tuple[RunningTopology, UIServer]
) -> None:
    running, server = one_is_idle
    with opened(browser, server.url) as page:
        shown = amount(running.status["sources"][0]["lag"]["amount"], "bytes")
        assert shown.endswith(" KiB")
        expect(tile(page, "Lag")).to_have_text(shown)
        note = page.locator(".tile", has=page.get_by_text("Lag", exact=True)).locator(".note")
        expect(note).to_have_text(
            re.compile(r"^still to be read; about .* (s|min|h|d) at the rate of now; not known of clicks$")
        )
        line = page.get_by_role("region", name="Over time").locator("figure", has_text="Lag")
        expect(line.locator("strong")).to_have_text(shown)
        expect(line).to_contain_text(f"at most {shown}; not known of clicks")
        expect(page.get_by_role("region", name="Sources").first.get_by_role("row", name="files")).to_contain_text(shown)
        sizes = [0, 1, 812, 1023, 1024, 1536, 99_999, 102_400, 197_973, 1 << 20, 12_300_000, 3 << 30, 7 << 40, 5 << 50]
        told = page.evaluate(
            """async (sizes) => { const { amount } = await import('./static/format.js');
            return sizes.map((size) => amount(size, 'bytes')); }""",
            sizes,
        )
        assert told[2:] == [amount(each, "bytes") for each in sizes[2:]]
        assert told[:2] == ["0 bytes", "1 byte"]
