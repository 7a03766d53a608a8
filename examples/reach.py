"""Reach: how many distinct people saw a link because a person whom they follow posted it. Trident's example of DRPC.

Two streams keep who posted which link and who follows whom, in Redis. A request walks through both states and counts::

    make reach

does all of it, with a Redis of its own. With yours, at REDIS_URL::

    trident run examples/reach.py:topology --engine in_process --drpc-port 3774
    curl -d "foo.com/blog/1" localhost:3774/drpc/reach
"""

import os

from spouts import FixedBatchSpout
from states.redis import RedisState
from trident import TridentCollector, TridentTopology, TridentTuple
from trident.drpc import DRPCClient, DRPCServer
from trident.operations import BaseFunction, CombinerAggregator, Count, FilterNull, MapGet

POSTS = {
    "foo.com/blog/1": ["sally", "bob", "tim", "george", "nathan"],
    "engineering.twitter.com/blog/5": ["adam", "david", "sally", "nathan"],
    "tech.backtype.com/blog/123": ["tim", "mike", "john"],
}
FOLLOWERS = {
    "sally": ["bob", "tim", "alice", "adam", "jim", "chris", "jai"],
    "bob": ["sally", "nathan", "jim", "mary", "david", "vivian"],
    "tim": ["alex"],
    "nathan": ["sally", "bob", "adam", "harry", "chris", "vivian", "emily", "jordan"],
    "adam": ["david", "carissa"],
    "mike": ["john", "bob"],
    "john": ["alice", "nathan", "jim", "mike", "bob"],
}


class Names(CombinerAggregator[list[str]]):
    """All distinct names, sorted."""

    output_types = ("array<string>",)

    def init(self, tuple: TridentTuple) -> list[str]:
        """Return the name of one tuple."""
        return [tuple[0]]

    def combine(self, val1: list[str], val2: list[str]) -> list[str]:
        """Return the names of both."""
        return sorted({*val1, *val2})

    def zero(self) -> list[str]:
        """Return no name."""
        return []


class Each(BaseFunction):
    """Emits each name of a list."""

    output_types = ("string",)

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        """Emit a tuple for each name."""
        for name in tuple[0]:
            collector.emit([name])


def topology() -> TridentTopology:
    """Declare both streams and the request."""
    redis = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
    topology = TridentTopology("reach")
    posts = FixedBatchSpout("url: string, user: string", 4, *[(url, user) for url in POSTS for user in POSTS[url]])
    follows = FixedBatchSpout(
        "user: string, follower: string", 8, *[(who, by) for who in FOLLOWERS for by in FOLLOWERS[who]]
    )
    posters = (
        topology.new_stream("posts", posts)
        .group_by("url")
        .persistent_aggregate(RedisState(redis), "user", Names(), "posters")
    )
    followers = (
        topology.new_stream("follows", follows)
        .group_by("user")
        .persistent_aggregate(RedisState(redis), "follower", Names(), "followers")
    )
    (
        topology.new_drpc_stream("reach")
        .state_query(posters, "args", MapGet(), "posters")
        .each("posters", FilterNull())
        .each("posters", Each(), "poster")
        .state_query(followers, "poster", MapGet(), "followers")
        .each("followers", FilterNull())
        .each("followers", Each(), "follower")
        .group_by("follower")
        .aggregate(Count(), "ways")
        .aggregate(Count(), "reach")
    )
    return topology


def main() -> None:
    """Commit all posts and follows, then ask over HTTP for three links that were posted and one that was not."""
    with topology().start(engine="in_process") as running:
        running.process_all_available()
        with DRPCServer(running.local_drpc(), port=0) as server, DRPCClient(server.url) as client:
            for url in (*POSTS, "unseen.com"):
                print(f"{url}: {client.execute('reach', url)}")


if __name__ == "__main__":
    main()
