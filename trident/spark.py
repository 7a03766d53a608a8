"""States as tables of Spark: `spark.dataSource.register(TridentDataSource)`, then `spark.read.format("trident")`."""

from trident.runtime.reading.data_source import TridentDataSource

__all__ = ["TridentDataSource"]
