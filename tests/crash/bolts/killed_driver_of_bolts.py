"""A driver that is killed: runs the topology until a file says that all is done, and shows which processes its workers are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.crash.bolts.queue_cases import PENDING, spout_of
from tests.crash.bolts.recorded import LeafBolt, RecordedSpout, SplitBolt
from trident.storm import StormConfig, TopologyBuilder

TIMEOUT_S = 6.0
_EVERY_S = 0.2


def main(kind: str, address: str, master: str, folder: Path) -> None:
    """Run until `folder/stop` is there."""
    builder = TopologyBuilder()
    builder.set_spout("messages", RecordedSpout(spout_of(kind, address), folder), 2)
    builder.set_bolt("split", SplitBolt(), 2).shuffle_grouping("messages")
    builder.set_bolt("leaves", LeafBolt(folder), 2).fields_grouping("split", ["message", "leaf"])
    conf = StormConfig(
        name="kills", workers=2, acker_executors=2, message_timeout_s=TIMEOUT_S, max_spout_pending=PENDING,
        worker_timeout_s=5.0, max_worker_deaths=10_000, master=master,
    )  # fmt: skip
    with builder.start(conf) as running:
        while not (folder / "stop").exists():
            shown = folder / "workers.part"
            shown.write_text(json.dumps([each["pid"] for each in running.workers]))
            shown.rename(folder / "workers.json")
            running.await_termination(_EVERY_S)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
