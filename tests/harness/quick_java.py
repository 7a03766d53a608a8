"""Java for processes that live for seconds: compiled once and simply, and with Spark's classes read from an archive.

`make test` makes the archive, by `python -m tests.harness.quick_java FILE`. Where there is none, or Java finds that it is of
other jars or of another Java, all is the same and only slower: Spark starts in seven seconds instead of four.
"""

import os
import sys
from pathlib import Path

_ARCHIVE = Path(__file__).parents[2] / "build" / "spark.jsa"
_SIMPLE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


def _quick() -> str:
    if not _ARCHIVE.exists() or " " in str(_ARCHIVE):  # Spark splits its options at each space
        return _SIMPLE
    return f"{_SIMPLE} -XX:SharedArchiveFile={_ARCHIVE} -Xshare:auto -Xlog:cds*=off"


QUICK_JVM = _quick()
"""The options of Java."""


def _make(archive: Path) -> None:
    """Run what every Spark of the tests does, and keep the classes that this took."""
    from pyspark import SparkContext

    from trident.spark.session import spark_session, stop_session

    part = archive.with_suffix(".part")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{_SIMPLE} -XX:ArchiveClassesAtExit={part} -Xlog:disable -Xlog:all=error:stderr"
    spark = spark_session("classes", "local[2]")
    assert spark.sparkContext.parallelize(range(10), 2).map(lambda number: number + 1).sum() == 55
    assert spark.range(10).groupBy("id").count().count() == 10
    java = SparkContext._gateway.proc  # type: ignore[union-attr]  # it is there while Spark runs
    stop_session(spark)
    java.stdin.close()
    assert java.wait(120) == 0, "Java could not write the archive"
    part.replace(archive)


if __name__ == "__main__":
    _make(Path(sys.argv[1]).absolute())
