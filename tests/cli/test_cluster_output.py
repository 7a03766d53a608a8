"""What the commands for clusters print."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trident.cli.cluster_commands import print_list, print_topology
from trident.cluster.state.cluster_records import StormBase, WantedStatus
from trident.cluster.topology_overviews import TopologyOverview


def waiting(number: int, why: str) -> TopologyOverview:
    base = StormBase(f"t{number}", 0.0, WantedStatus("active", 0.0), 1, {}, "trident", "m:t", "0" * 64)
    return TopologyOverview(f"t{number}-{number}-0", base, None, None, why)


def test_a_reason_that_many_topologies_have_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_list([*(waiting(number, "no free slot") for number in range(200)), waiting(200, "no supervisor is there")])
    printed = capsys.readouterr().out
    assert printed.count("no free slot") == 1
    assert "t0, t1, t2, t3, t4 and 195 more: no free slot\n" in printed
    assert printed.endswith("t200: no supervisor is there\n")


def test_a_topology_is_shown_with_the_address_of_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    shown = replace(waiting(1, "no free slot"), page="http://one:8080/#/topology/t1-1-0")
    print_topology(shown)
    assert "page       http://one:8080/#/topology/t1-1-0\n" in capsys.readouterr().out
    print_topology(waiting(1, "no free slot"))
    assert "page " not in capsys.readouterr().out
