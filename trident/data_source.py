"""`spark.read.format("trident")`: states as tables of Spark, read by its tasks, which find everything by the options."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from trident.config import Config
from trident.errors import ConfigError, StaleTransactionError, StateError
from trident.fields import Fields, quote
from trident.graph import StateNode
from trident.read.open_partitions import graph_to_read, open_state
from trident.read.state_reader import ForeignLog, log_place
from trident.read.views import StateView, columns_of, table_of_state
from trident.servers.log_addresses import is_log_address
from trident.setting_types import check_names
from trident.state.interfaces import State
from trident.state.txid import Snapshot, Winners
from trident.targets import load_topology

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_INSTEAD = 'Read it there with running.state("…").to_dataframe(spark)'


class TridentDataSource(DataSource):
    """The states of a topology as tables: `spark.read.format("trident").option("topology", …).load("state")`.

    Options
    -------
    topology
        Where it is declared: `module:topology` or `path/to/file.py:topology`.
    state
        The name of the state; or what is given to `load`.
    log_dir
        The folder of the log, which all machines see, or its address on a server; default: `trident-log/TOPOLOGY`.
    txid
        The batch as of which to read, where the store keeps earlier ones (Delta); default: the last committed one.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        known = ("topology", "state", "path", "log_dir", "txid")
        check_names("the format trident has no option", [name.lower() for name in options], known)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "trident"

    def schema(self) -> str:
        """Return the columns: the key's fields, then the value."""
        columns = columns_of(self._node())
        unknown = [name for name, type_ in zip(columns.names, columns.types, strict=True) if type_ is None]
        if unknown:
            raise StateError(
                f"the type of {unknown[0]!r} in state {self._node().name!r} is not declared. Give the columns with .schema(…)"
            )
        return ", ".join(f"{quote(name)} {type_}" for name, type_ in zip(columns.names, columns.types, strict=True))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what plans and reads."""
        topology = self._topology()
        log_dir = self.options.get("log_dir") or log_place(topology.name, topology.settings())
        config = Config.of(log_dir=log_dir if is_log_address(log_dir) else str(Path(log_dir).absolute()))
        txid, node = self.options.get("txid"), self._node()
        reader = _Reader(topology.name, node, config, tuple(schema.names), None if txid is None else int(txid))
        with closing(reader.log()) as log:
            return replace(reader, node=graph_to_read(topology.graph(), log.now().declared, node.name).state(node.name))

    def _topology(self) -> Any:
        target = self.options.get("topology")
        if not target:
            raise ConfigError('say where the topology is declared: .option("topology", "module:topology")')
        return load_topology(target)

    def _node(self) -> StateNode:
        graph = self._topology().graph()
        name = self.options.get("state") or self.options.get("path")
        if not name:
            states = ", ".join(repr(state.name) for state in graph.states)
            raise ConfigError(f'name a state with load("…") or .option("state", "…"); the topology has {states}')
        node: StateNode = graph.state(name)
        return node


@dataclass(frozen=True)
class _Reader(DataSourceReader):
    """Where a state is, for the planning and its tasks: one for each partition, all at the snapshot that the planning took."""

    topology: str
    node: StateNode
    config: Config
    names: tuple[str, ...]
    txid: int | None

    def log(self) -> ForeignLog:
        return ForeignLog(self.topology, self.config, [self.node], _INSTEAD)

    def view(self, log: ForeignLog, partitions: int, snapshot: Snapshot) -> StateView:
        readers = [self.open(partition, partitions) for partition in range(partitions)]
        columns, free = columns_of(self.node), self.node.free_keys
        return StateView(readers, lambda: snapshot, self.node.name, columns, free, log=log.now)

    def open(self, partition: int, partitions: int) -> State:
        return open_state(self.topology, self.node, self.config.as_mapping(), partition, partitions, read_only=True)

    def partitions(self) -> Sequence[InputPartition]:
        name = self.node.name
        with closing(self.log()) as log:
            now, count = log.now().snapshot(name), log.partitions(name)
            then = now if self.txid is None else self._at(now)
            with closing(self.view(log, count, then)) as view:
                view.compare()  # so that an error comes from the planning, once
        snapshot = (then.txid, then.winners.ranges, then.winners.adopted, then.winners.types)
        return [InputPartition((partition, count, snapshot)) for partition in range(count)]

    def _at(self, now: Snapshot) -> Snapshot:
        assert self.txid is not None, "asked only with a txid"
        name = self.node.name
        if self.txid > now.txid:
            raise StateError(f"read state {name!r} as of batch {self.txid}: {now.txid} is the last one committed")
        if self.txid < now.txid:
            with closing(self.open(0, 1)) as state:
                keeps_earlier = state.facts.at is not None
            if not keeps_earlier:
                raise StateError(
                    f"read state {name!r} as of batch {self.txid}: its store is not a Delta table, so only the last batch "
                    f"({now.txid}) can be read"
                )
        return Snapshot(self.txid, now.winners)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        index, count, (txid, *winners) = partition.value
        # Keys that an updater chooses are called as in the schema that was given.
        columns = Fields.of(self.names, [None] * len(self.names)) if self.node.free_keys else columns_of(self.node)
        snapshot = Snapshot(txid, Winners.of(*winners))
        try:
            with closing(self.log()) as log, closing(self.view(log, count, snapshot)) as view:
                for rows in view.pages_of(index):
                    yield from table_of_state(self.node.name, columns, rows).to_batches()
        except StaleTransactionError as error:
            raise StateError(
                f"read state {self.node.name!r} as of batch {txid}: its topology committed further batches while Spark read. "
                "Stop the topology meanwhile, keep the state in Delta, or read it with get_tuples(), page by page"
            ) from error
