"""The Spark session of the benchmark, and what a query said about its batches."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.peer_jars import spark_jars
from bench.processes import ProcessError

ROOT: Final = Path(__file__).parent.parent
_POLL_S: Final = 0.05


def session(scratch: Path, cores: int) -> SparkSession:
    """Return a session on so many cores, with Spark's own defaults where speed is concerned."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = str(ROOT)
    scratch.mkdir(parents=True, exist_ok=True)
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(scratch),
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
    }
    if (jars := spark_jars("spark-kafka")) is not None:
        settings["spark.jars"] = jars
    builder = SparkSession.builder.master(f"local[{cores}]").appName("bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    return made


def about() -> dict[str, str]:
    """Return the versions that the rows depend on."""
    java = subprocess.run(["java", "-version"], capture_output=True, check=False, text=True)
    lines = [line for line in java.stderr.splitlines() if "version" in line]
    return {
        "pyspark": version("pyspark"),
        "pyarrow": version("pyarrow"),
        "Java": lines[0].strip() if lines else "unknown",
    }


def batches_of(query: StreamingQuery, count: int, timeout_s: float) -> Sequence[Mapping[str, Any]]:
    """Wait until *query* has finished so many batches with rows; return all of them.

    Raises:
        ProcessError: the query failed, or took longer.

    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        done = [progress for progress in query.recentProgress if progress["numInputRows"]]
        if len(done) >= count:
            return done
        if (failure := query.exception()) is not None:
            raise ProcessError(f"a query failed: {failure}")
        if time.monotonic() > deadline_s:
            raise ProcessError(f"{len(done)} of {count} batches in {timeout_s:.0f} s")
        time.sleep(_POLL_S)
