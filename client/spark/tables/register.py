"""The tables' formats, made known to a session."""

from typing import TYPE_CHECKING, Final

from client.spark.tables.groups import GroupMembersSource, GroupRebalancesSource
from client.spark.tables.offset_log import OffsetLogSource
from client.spark.tables.offset_table import GroupOffsetsSource
from client.spark.tables.options import SPARK_SCOPES_FILTERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCES: Final = (
    GroupOffsetsSource,
    OffsetLogSource,
    GroupMembersSource,
    GroupRebalancesSource,
)
_PUSH_DOWN: Final = "spark.sql.python.filterPushdown.enabled"


def register_tables(spark: "SparkSession") -> None:
    """Make the formats known.

    And let Spark push filters down to sources in Python, if it does that right: without the setting
    it refuses to read a source that could take them.
    """
    if SPARK_SCOPES_FILTERS:
        spark.conf.set(_PUSH_DOWN, "true")
    for source in SOURCES:
        spark.dataSource.register(source)
