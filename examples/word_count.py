"""The word count of the README: text files, an exact count per word, the counts in a Delta table.

Put text files into `books/` (or name another folder in the environment variable WORD_COUNT_TEXT), then::

    trident run examples/word_count.py:topology --once
    trident get examples/word_count.py:topology count the and
    trident log trident-log/word-count
    trident drpc examples/word_count.py:topology

The last one answers over HTTP how often the words of a text were counted, all of them together::

    curl -d "the cow and the moon" localhost:3774/drpc/words

Without `--once` it goes on with files that come and files that grow, until Ctrl-C.
"""

import os

from spouts import TextFileSpout
from states.delta import DeltaState
from trident import TridentTopology
from trident.operations import Count, FilterNull, MapGet, Split, Sum


def build(text: str, counts: str) -> TridentTopology:
    """Declare the topology: count the words of the files in the folder `text`, in the table `counts`."""
    topology = TridentTopology("word-count")
    word_counts = (
        topology.new_stream("lines", TextFileSpout(text, max_batch_bytes=8 << 20))
        .each("line", Split(), "word")
        .group_by("word")
        .persistent_aggregate(DeltaState(counts), Count(), "count")
    )
    (
        topology.new_drpc_stream("words")
        .each("args", Split(), "word")
        .group_by("word")
        .state_query(word_counts, "word", MapGet(), "count")
        .each("count", FilterNull())
        .aggregate("count", Sum(), "sum")
    )
    return topology


def topology() -> TridentTopology:
    """What `trident run examples/word_count.py:topology` runs."""
    return build(os.environ.get("WORD_COUNT_TEXT", "books"), os.environ.get("WORD_COUNT_STATE", "word-count-state"))
