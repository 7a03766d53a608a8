"""`python -m trident.cluster.driver_main ORDER`: what a supervisor starts in a slot."""

import faulthandler
import logging
import logging.handlers
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path

from trident.cluster.driver_orders import DriverBeats, Ending, Orders, TopologyHandle, config_of
from trident.cluster.machine_folder import DriverEnd, DriverOrder
from trident.cluster.package_archive import MANIFEST, PackageManifest
from trident.cluster.topology_package import load_package
from trident.cluster_state.cluster_address import TOKEN_VARIABLE, log_of_base, open_cluster_state
from trident.cluster_state.cluster_records import StormBase
from trident.cluster_state.storm_cluster_state import StormClusterState
from trident.config import Config
from trident.errors import FencedError, TridentError, can_heal
from trident.observe.batch_committed import BatchCommitted
from trident.observe.events import ErrorFeed, event_of
from trident.redaction import RedactingFormatter, redacted
from trident.roles import close_on_error
from trident.web.cluster_pages import OneTopology
from trident.web.rest import UIServer

logger = logging.getLogger("trident.cluster.driver")

_LOG_BYTES, _LOGS_KEPT = 10 << 20, 5
_BATCH_EVERY_S = 5.0


class _Driver:
    def __init__(self, order: DriverOrder) -> None:
        self._order = order
        self._running_since: float | None = None

    def run(self) -> int:
        order = self._order
        try:
            with ExitStack() as open_things:
                ending = self._run(open_things)
        except Exception as error:
            logger.error("the driver of %s died", order.storm_id, exc_info=error)  # the last place that can report it
            text = str(error) if isinstance(error, TridentError) else "".join(traceback.format_exception(error))
            reason = redacted(f"{type(error).__name__}: {text}")  # others may read the file
            DriverEnd(False, self._is_fatal(error), self._ran_secs, reason).write(Path(order.end_file))
            return 1
        logger.info("the driver of %s ends: %s", order.storm_id, ending)
        DriverEnd(True, False, self._ran_secs, ending).write(Path(order.end_file))
        return 0

    def _run(self, open_things: ExitStack) -> Ending:
        cluster = StormClusterState(open_cluster_state(self._order.cluster))
        open_things.callback(cluster.disconnect)
        orders = Orders(cluster, self._order)
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: orders.end())
        base = orders.base()
        if base is None:
            return "moved"
        if base.status.kind == "killed":
            # Without a heartbeat Nimbus forgets it at once, and need not wait until this one is stale.
            cluster.remove_worker_heartbeat(self._order.storm_id, self._order.node, self._order.port)
            return "killed"
        # Before the topology is loaded: that, and a start of Spark, may take longer than Nimbus waits for a sign.
        beats = DriverBeats(cluster, self._order)
        with close_on_error(lambda: beats.stop(ended=False)):
            ending = self._drive(open_things, orders, base, beats)
        beats.stop(ended=ending == "killed")
        return ending

    def _drive(self, open_things: ExitStack, orders: Orders, base: StormBase, beats: DriverBeats) -> Ending:
        folder = Path(self._order.code_dir)
        manifest = PackageManifest.of_bytes((folder / MANIFEST).read_bytes())
        topology = load_package(folder, manifest, base.storm_name)
        executors = {name: facts.executors for name, facts in manifest.components.items()}
        config = config_of(topology, base, log_of_base(self._order.cluster, base))
        # Before the start, which raises the epoch that a proof is compared with.
        if isinstance(config, Config):
            base = orders.note_proof(base, config.log_dir)
        driven = TopologyHandle(topology, self._order.storm_id, base, executors, config)
        self._running_since = time.time()
        logger.info("topology %s runs", self._order.storm_id)
        # The token is not in the order, which all users of this machine may read.
        token, pages = os.environ.get(TOKEN_VARIABLE), OneTopology(self._order.storm_id, driven.pages)
        server = UIServer(pages, self._order.host, 0, token, token_for_all=token is not None)
        open_things.callback(server.close)
        beats.pages = server.url
        beats.statistics, beats.errors = driven.statistics, ErrorFeed(lambda: driven.running.errors).new
        beats.say("active" if base.status.kind == "active" else "inactive")
        ending, base = orders.follow(driven, base, beats)
        beats.say("ending")
        driven.stop(base.status.wait_secs if ending == "killed" else 0.0)
        error = driven.running.exception()
        # The next driver may have taken the log before this one has read that it is to end.
        if error is not None and not (ending == "moved" and isinstance(error, FencedError)):
            raise error
        return ending

    def _is_fatal(self, error: Exception) -> bool:
        """Whether another driver would end in the same way."""
        # Of an error that is not Trident's it is believed only before the topology ran: a Spark that dies leaves many kinds.
        return not can_heal(error) and (isinstance(error, TridentError) or self._running_since is None)

    @property
    def _ran_secs(self) -> float:
        return 0.0 if self._running_since is None else time.time() - self._running_since


class _SomeBatches(logging.Filter):
    """Logs at most one batch every few seconds: there may be hundreds a second."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if not isinstance(event_of(record), BatchCommitted):
            return True
        if record.created < self._next:
            return False
        self._next = record.created + _BATCH_EVERY_S
        return True


def main() -> int:
    # What ends by a signal of a library shows where, in what it printed, which its supervisor reports.
    faulthandler.enable()
    order = DriverOrder.read(Path(sys.argv[1]))
    assert order is not None, "a supervisor writes the order before it starts the process"
    handler = logging.handlers.RotatingFileHandler(
        order.log_file, maxBytes=_LOG_BYTES, backupCount=_LOGS_KEPT, encoding="utf-8", errors="backslashreplace"
    )
    handler.addFilter(_SomeBatches())
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for noisy in ("py4j", "kazoo", "httpx", "uvicorn"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    where = f"{socket.gethostname()}:{order.port}"
    logger.info("driver of %s, generation %d, in slot %s", order.storm_id, order.generation, where)
    return _Driver(order).run()


if __name__ == "__main__":
    sys.exit(main())
