"""Basic bolts run as rich ones: anchored to the tuple that is executed, which is answered when `execute` returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trident.errors import FailedException, ReportedFailedException
from trident.storm.context import TopologyContext
from trident.storm.execution.collectors import BasicCollector, BoltCollector
from trident.storm.interfaces import IBasicBolt
from trident.storm.storm_tuples import Tuple
from trident.storm.streams import StreamDeclarer

__all__ = ["RichBoltOfBasic"]


class RichBoltOfBasic:
    """The rich bolt that a basic bolt is."""

    def __init__(self, bolt: IBasicBolt) -> None:
        self._bolt = bolt

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext, collector: BoltCollector) -> None:
        """Prepare the bolt."""
        self._collector = collector
        self._basic = BasicCollector(collector)
        self._run = self._bolt.execute
        self._bolt.prepare(conf, context)

    def execute(self, tuple: Tuple) -> None:
        """Execute, then ack; fail if the bolt says so."""
        self._basic.anchor = tuple
        try:
            self._run(tuple, self._basic)
        except FailedException as error:
            if isinstance(error, ReportedFailedException):
                self._collector.report_error(error)
            self._collector.fail(tuple)
        else:
            self._collector.ack(tuple)

    def cleanup(self) -> None:
        """Clean up the bolt."""
        self._bolt.cleanup()

    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        """Declare as the bolt does."""
        self._bolt.declare_output_fields(declarer)
