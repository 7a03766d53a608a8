"""Entries of Redis Streams as single messages, each pending in its consumer group until its tuple tree is acknowledged.

Begin with `spout.py`; `group_queue.py` calls Redis. `spouts.redis_streams` reads streams in batches, for Trident.
"""

from spouts.redis_messages.spout import RedisStreamRichSpout
from spouts.redis_messages.stream_bolt import RedisStreamBolt

__all__ = ["RedisStreamBolt", "RedisStreamRichSpout"]
