"""StructuredStreamingSpout: any streaming DataFrame of Spark as a source. Begin with `spout.py`."""

from spouts.streaming.spout import StructuredStreamingSpout

__all__ = ["StructuredStreamingSpout"]
