"""Spark, made small: several drivers share two cores here."""

import os
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

# A short-lived JVM spends its time on starting; these two make that cheaper.
_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def spark_session(name: str, *, cores: int, scratch: Path) -> SparkSession:
    """Return the session of this process.

    Args:
        name: the application's name.
        cores: how many tasks run at a time.
        scratch: the folder for Spark's temporary files.

    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    scratch.mkdir(parents=True, exist_ok=True)
    builder = SparkSession.builder.appName(name).master(f"local[{cores}]")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f'{_JAVA_OPTIONS} "-Djava.io.tmpdir={scratch}"',
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "640m",
        "spark.local.dir": str(scratch),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.streaming.pollingDelay": "200ms",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    session: SparkSession = builder.getOrCreate()
    return session
