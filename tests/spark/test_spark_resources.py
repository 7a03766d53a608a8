"""Slots of Spark that a topology's workers take."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trident.spark import spark_resources
from trident.spark.spark_resources import Slots


def test_slots_are_counted_when_the_first_executor_has_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    registering = [[], [], [SimpleNamespace(id=lambda: "0", totalCores=lambda: 8)]]
    monkeypatch.setattr(
        spark_resources, "executors_of", lambda context: registering.pop(0) if registering[1:] else registering[0]
    )
    conf = SimpleNamespace(get={"spark.task.cpus": "1"}.get)
    context = SimpleNamespace(master="spark://host:7077", applicationId="app", getConf=lambda: conf, _jvm=None)
    slots = Slots(context, "counts")  # type: ignore[arg-type]
    assert slots.take_free(4) == 4
    slots.release()
