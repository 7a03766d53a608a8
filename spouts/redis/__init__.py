"""Redis Streams as sources, in batches for Trident, or entry by entry for bolts.

Begin with `spout.py`. `id_ranges.py`: streams as logs, a batch a range of ids; `group_queue.py`: a consumer group as a queue.
"""

from spouts.redis.spout import RedisStreamBolt, RedisStreamRichSpout, TransactionalRedisStreamSpout

__all__ = ["RedisStreamBolt", "RedisStreamRichSpout", "TransactionalRedisStreamSpout"]
