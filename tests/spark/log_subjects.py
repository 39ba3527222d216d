"""The subjects of the conformance kit for the logs of this package."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from client.spark.folder import FolderLogWriter
from client.spark.log_testkit import LogSubject

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


class FolderSubject(LogSubject):
    """A topic of a folder log with two partitions."""

    def __init__(self, folder: Path, log: str = "folder") -> None:
        self._folder = folder
        self._log = log
        self._count = 0
        FolderLogWriter.create(folder, self.topic, SCHEMA, 2, fsync=False).close()

    def options(self) -> Mapping[str, str]:
        """Return the options of a folder log."""
        return {"log": self._log, "path": str(self._folder)}

    def append(self, partition: int, count: int) -> None:
        """Append rows that are all different."""
        ids = list(range(self._count, self._count + count))
        self._count += count
        rows = pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, schema=SCHEMA)
        with FolderLogWriter(self._folder, self.topic, fsync=False) as writer:
            writer.append(partition, rows)

    def delete_before(self, partition: int, offset: int) -> None:
        """Delete the chunks that end before *offset*."""
        for path in (self._folder / self.topic / str(partition)).glob("*.arrow"):
            if int(path.stem.partition("-")[2]) <= offset:
                path.unlink()

    def grow(self) -> None:
        """Make the folder of a third partition."""
        (self._folder / self.topic / "2").mkdir()
