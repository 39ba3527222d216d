"""Append to the log that spark_driver.py reads: a topic of four partitions in the folder `logs`.

Its name is that of no other source: a coordinator knows topics by their names alone.
"""

import time
from pathlib import Path

import pyarrow as pa

from client.spark import FolderLogWriter

SCHEMA = pa.schema([("order_id", pa.int64()), ("amount", pa.float64())])
PARTITIONS = 4


def main(batches: int = 60, pause_s: float = 1.0) -> None:
    """Append 100 orders to each partition, *batches* times."""
    if Path("logs/order-files").exists():
        writer = FolderLogWriter("logs", "order-files")
    else:
        writer = FolderLogWriter.create("logs", "order-files", SCHEMA, PARTITIONS)
    with writer:
        for _ in range(batches):
            for partition in range(PARTITIONS):
                first = writer.end(partition)
                ids = range(first, first + 100)
                rows = [{"order_id": i, "amount": i / 100} for i in ids]
                writer.append(partition, pa.Table.from_pylist(rows, schema=SCHEMA))
            time.sleep(pause_s)


if __name__ == "__main__":
    main()
