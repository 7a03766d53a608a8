"""What both engines, of batches and of bolts, need of Spark: sessions, environment, code for executors, errors of jobs.

Begin with `session.py`. For users: `TridentDataSource`, states as tables of Spark, by
`spark.dataSource.register(TridentDataSource)` and then `spark.read.format("trident")`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trident.data_source import TridentDataSource

__all__ = ["TridentDataSource"]


def __getattr__(name: str) -> Any:
    """Import the data source when it is asked for: PySpark has had none before 4.0, and a driver needs none."""
    if name != "TridentDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trident.errors import EnvironmentProblem

    try:
        from trident.data_source import TridentDataSource
    except ModuleNotFoundError as error:
        if error.name != "pyspark.sql.datasource":
            raise
        raise EnvironmentProblem(
            'spark.read.format("trident") needs PySpark 4.0 or newer. Read the state with '
            "running.state(...).to_dataframe(spark) or open_state(...).to_dataframe(spark)"
        ) from error
    return TridentDataSource
