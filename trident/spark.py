"""States as tables of Spark: `spark.dataSource.register(TridentDataSource)`, then `spark.read.format("trident")`."""

from trident.errors import EnvironmentProblem

try:
    from trident.runtime.reading.data_source import TridentDataSource
except ModuleNotFoundError as error:
    if error.name != "pyspark.sql.datasource":
        raise
    raise EnvironmentProblem(
        'spark.read.format("trident") needs PySpark 4.0 or newer. Read the state with running.state(...).to_dataframe(spark) '
        "or open_state(...).to_dataframe(spark)"
    ) from error

__all__ = ["TridentDataSource"]
