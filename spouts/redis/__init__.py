"""Redis Streams as sources, in batches for Trident, or entry by entry for bolts.

Begin with `spout.py`: `TransactionalRedisStreamSpout` reads streams as logs, by ids; `id_ranges.py` says what a batch is.
`RedisStreamRichSpout` emits single entries, each pending in its consumer group until its tuple tree is acknowledged:
`group_queue.py`. `RedisStreamBolt` writes a stream. `stream_server.py` calls Redis and makes tables of entries.
"""

from spouts.redis.spout import RedisStreamBolt, RedisStreamRichSpout, TransactionalRedisStreamSpout

__all__ = ["RedisStreamBolt", "RedisStreamRichSpout", "TransactionalRedisStreamSpout"]
