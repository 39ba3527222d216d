"""The subjects of the conformance kit for the logs of this package."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from client.spark.logs.files_index import PieceIndex
from client.spark.logs.folder import FolderLogWriter
from client.spark.logs.testkit import LogSubject

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


class FilesSubject(LogSubject):
    """A topic of a log of files with two folders as partitions."""

    def __init__(self, folder: Path, form: str) -> None:
        self._folder = folder
        self._form = form
        self._count = 0
        self._files = 0
        for partition in (0, 1):
            (folder / self.topic / f"partition={partition}").mkdir(parents=True)

    def options(self) -> Mapping[str, str]:
        """Return the options of a log of files."""
        given = {"log": "files", "path": str(self._folder), "log.format": self._form}
        if self._form != "lines":
            given["log.schema"] = "id bigint, name string"
        return given

    def append(self, partition: int, count: int) -> None:
        """Append to a text, now and then to a new one; or write a new file."""
        ids = list(range(self._count, self._count + count))
        self._count += count
        self._files += 1
        folder = self._folder / self.topic / f"partition={partition}"
        if self._form in {"lines", "json"}:
            # Names fall, so that their order isn't that of discovery.
            with (folder / f"{1000 - self._files // 2}.log").open("a") as file:
                file.writelines(f'{{"id": {i}, "name": "n{i}"}}\n' for i in ids)
            return
        rows = pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, schema=SCHEMA)
        path = folder / f"{100_000 - self._files}.{self._form}"
        write_file(path.with_suffix(".tmp"), rows, self._form)
        path.with_suffix(".tmp").rename(path)

    def delete_before(self, partition: int, offset: int) -> None:
        """Delete the files all of whose rows are before *offset*."""
        index = PieceIndex(
            self._folder / self.topic / "_index",
            partition,
            {"format": self._form, "partitions": None},
        )
        index.load()
        for name, last in index.files.items():
            if last.end <= offset:
                (self._folder / self.topic / f"partition={partition}" / name).unlink()

    def grow(self) -> None:
        """Make the folder of a third partition."""
        (self._folder / self.topic / "partition=2").mkdir()


def write_file(path: Path, rows: pa.Table, form: str, batch_rows: int = 7) -> None:
    """Write a Parquet or Arrow file with several row groups or batches."""
    if form == "parquet":
        pq.write_table(rows, path, row_group_size=batch_rows)
        return
    with pa.ipc.new_file(path, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=batch_rows)
