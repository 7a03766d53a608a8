"""Redis Streams as sources: `RedisStreamSpout` reads through a consumer group, `TransactionalRedisStreamSpout` by ids.

Begin with `spout.py`. `group_batches.py` and `id_ranges.py` say what a batch is, `stream_server.py` calls Redis.
"""

from spouts.redis_streams.spout import RedisStreamSpout, TransactionalRedisStreamSpout

__all__ = ["RedisStreamSpout", "TransactionalRedisStreamSpout"]
