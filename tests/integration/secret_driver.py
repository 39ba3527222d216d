"""A Spark driver with secrets in its options, which shows all that Spark shows to whoever asks."""

import json
import sys
from pathlib import Path

from client.spark import register
from client.spark.options import OptionError
from tests.integration.spark_driver import say
from tests.integration.spark_support import AppendingSink, local_spark, stream


def main() -> None:
    """Run until stdin ends."""
    given = json.loads(sys.argv[1])
    scratch, log = Path(given["scratch"]), Path(given["log"])
    scratch.mkdir(exist_ok=True)
    spark = local_spark(
        scratch,
        log_level="INFO",
        spark_ui_enabled="true",
        spark_ui_port="0",
        spark_eventLog_enabled="true",
        spark_eventLog_dir=given["events"],
        spark_eventLog_compress="false",  # Else there is nothing to find in it.
        # Every plan, before and after each rule, goes to the driver's log.
        spark_sql_planChangeLog_level="WARN",
    )
    register(spark)
    options = json.loads(given["options"])
    try:
        stream(spark, given["address"], log, **options | {"sasl.password": given["literal"]})
    except Exception as error:  # noqa: BLE001 - whatever it is must not show the secret
        say("refused", is_option=isinstance(error, OptionError), text=str(error))
    query = (
        stream(spark, given["address"], log, **options)
        .writeStream.foreachBatch(AppendingSink(Path(given["sink"])))
        .option("checkpointLocation", given["checkpoint"])
        .start()
    )
    query.processAllAvailable()
    table = spark.read.format("group_offsets").options(coordinator=given["address"], **options)
    table.load().show()
    plan = query._jsq.explainInternal(True)  # `explain` prints it.
    say("ran", ui=spark.sparkContext.uiWebUrl, plan=plan)
    sys.stdin.readline()
    query.stop()
    spark.stop()
    say("stopped")


if __name__ == "__main__":
    main()
