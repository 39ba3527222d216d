"""A Delta table as a driver sees it: its form, what its log says of positions, and commits.

A position is a set of application transactions, Delta's own way to say how far a writer is::

    <group>/<topic>/<partition>             the end of the last range, -1 once it is forgotten
    <group>/<topic>/<partition>/start       where that range began
    <group>/<topic>/<partition>/generation  and its generation
    <group>/<topic>/<partition>/late        the end of the last late range, or -1

The first one is in every change of a position, the others where they change. A commit is decided
on one version of the table. Where another one was faster, the library looks whether that one has
a transaction of the same id, changed the table's form, or deleted rows: then this commit fails,
and is decided anew. Otherwise, for other partitions and for upkeep, it goes on behind the other.

The library tells one transaction at a time, and reads the log for each. So the log is read here:
from its last checkpoint on when a driver begins, and then each new commit once.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import count
from typing import Any, Final

import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction
from pyspark.sql.types import StructField, StructType

from client.spark.disk import fsync_path
from client.spark.sinks.delta_files import Written, file_system, local_folder
from client.spark.sinks.ranges import NO_NUMBER, PartitionKey, SinkError, Stored

LOG_FOLDER: Final = "_delta_log"
_LAST_CHECKPOINT: Final = "_last_checkpoint"

# What the folders of the release before have, which had a format of their own.
_OLD_LOG_FOLDER: Final = "_log"

_DRAWING: Final = re.compile(r"\x1b\[\d+m|↳")

_FORGOTTEN: Final = -1
_PARTS: Final = ("start", "generation", "late")

# Features of tables whose rows need nothing that this writer doesn't do, unless the table's
# properties or columns say so (`_obstacles`).
_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)


def transactions_of(
    key: PartitionKey, before: Stored | None, after: Stored | None
) -> dict[str, int]:
    """Return the application transactions that change a position; None is one that isn't there."""
    app_id = key.app_id
    if after is None:
        return {app_id: _FORGOTTEN}
    old = None if before is None else _parts(before)
    changed = {
        f"{app_id}/{name}": value
        for name, value in _parts(after).items()
        if old is None or old[name] != value
    }
    return {app_id: after.end, **changed}


def _parts(stored: Stored) -> dict[str, int]:
    start, _, generation, late = stored.numbers()
    return dict(zip(_PARTS, (start, generation, late), strict=True))


def positions_of(transactions: Mapping[str, int]) -> dict[PartitionKey, Stored]:
    """Return the positions that application transactions come to; those of others are passed over.

    Whoever writes ranges with `RangeBatch.delta_options` has only ends: the rest is -1.
    """
    found = {}
    for app_id, end in transactions.items():
        key = PartitionKey.of_app_id(app_id)
        if key is not None and end != _FORGOTTEN:
            start, generation, late = (
                transactions.get(f"{app_id}/{name}", NO_NUMBER) for name in _PARTS
            )
            found[key] = Stored.of_numbers(start, end, generation, late)
    return found


class TableLog:
    """The table at *uri*, as of the newest version that was looked at.

    Args:
        uri: an absolute path, or what the library takes for one.
        storage_options: what the library is told about the store.
        fsync: whether commits to a local table are on disk before `commit` returns.

    """

    def __init__(self, uri: str, storage_options: Mapping[str, str], *, fsync: bool) -> None:
        self.uri = uri
        self.transactions: dict[str, int] = {}
        self._options = dict(storage_options)
        self._folder = local_folder(uri) if fsync else None
        self._table: DeltaTable | None = None
        self._newest: tuple[int | None, int | None] | None = None  # Of the newest commit's file.
        self._read_to = -1  # The version up to which transactions were read.

    @property
    def version(self) -> int:
        """The version that was looked at; -1 where there is no table."""
        return -1 if self._table is None else self._table.version()

    @property
    def schema(self) -> StructType | None:
        """The columns; None where there is no table."""
        if self._table is None:
            return None
        return StructType.fromJson(json.loads(self._table.schema().to_json()))

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns by which the table is partitioned."""
        return () if self._table is None else tuple(self._table.metadata().partition_columns)

    def refresh(self) -> None:
        """Look at the newest version.

        Raises:
            SinkError: the table is gone or was made anew since, is damaged, or can't be written.

        """
        try:
            if self._table is None or self._look() != self._newest:
                self._open()
            else:
                self._table.update_incremental()
            if self._table is not None:
                self._follow(self._table)
        except DeltaError as error:
            what = _in_one_line(error)
            raise SinkError(f"{self.uri} can't be read as a Delta table: {what}") from None
        except OSError as error:
            raise SinkError(f"{self.uri} can't be reached: {_in_one_line(error)}") from None

    def create(self, schema: StructType, partition_by: Sequence[str]) -> None:
        """Make the table, unless somebody else does so at the same time; then look at it.

        Raises:
            SinkError: Delta has no such columns.

        """
        try:
            DeltaTable.create(
                self.uri,
                Schema.from_json(schema.json()),
                mode="error",
                partition_by=list(partition_by),
                storage_options=self._options,
                # A retry would lay this form over that of another driver, who was faster.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except (DeltaError, ValueError) as error:
            self.refresh()
            if self._table is None:
                what = _in_one_line(error)
                raise SinkError(f"{self.uri} can't be made as a Delta table: {what}") from None
        else:
            self.refresh()

    def add_columns(self, fields: Sequence[StructField]) -> None:
        """Add columns, unless somebody else changes the table at the same time; then look at it."""
        assert self._table is not None
        version = self.version
        try:
            self._table.alter.add_columns(Schema.from_json(StructType(list(fields)).json()).fields)
        except (DeltaError, ValueError) as error:
            self.refresh()
            if self.version == version:
                what = _in_one_line(error)
                raise SinkError(f"{self.uri} takes no new columns: {what}") from None
        else:
            self.refresh()

    def missing(self, files: Iterable[Written]) -> list[str]:
        """Return the files that are not there, or not as large as they were written."""
        return [file.path for file in files if self._stat(file.path)[0] != file.bytes]

    def delete(self, files: Iterable[Written]) -> None:
        """Delete files that no commit has named; those that can't be are left to a vacuum."""
        with suppress(OSError):
            for file in files:
                self._store.delete_file(file.path)

    def commit(
        self, files: Sequence[Written], transactions: Mapping[str, int], *, at_ms: int
    ) -> bool:
        """Add files and set transactions at once; False if somebody else's commit forbids it.

        Raises:
            SinkError: the table is gone, or the library refuses the commit for another reason.

        """
        assert self._table is not None
        if self._look() != self._newest:
            return False
        version = self.version
        try:
            self._table.create_write_transaction(
                [_add_action(file, at_ms) for file in files],
                mode="append",
                schema=self._table.schema(),
                partition_by=list(self.partition_by),
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(*each) for each in transactions.items()]
                ),
            )
        except DeltaError as error:
            self.refresh()
            if self.version == version:  # A conflict with nobody is none.
                raise SinkError(f"{self.uri} refuses the batch: {_in_one_line(error)}") from None
            return False
        self._fsync_log(version)
        return True

    def _open(self) -> None:
        try:
            table = DeltaTable(self.uri, storage_options=self._options)
        except TableNotFoundError:
            if self._table is not None:
                raise SinkError(
                    f"{self.uri} was a Delta table, and is none any more: it was deleted, or "
                    "moved. Nothing was written. Bring it back; or restart the query, which then "
                    "begins a new table with the rows that the group reads next"
                ) from None
            self._refuse_old_folder()
            return
        old = self._table
        if old is not None and (
            table.metadata().id != old.metadata().id or table.version() < old.version()
        ):
            raise SinkError(
                f"{self.uri} is another table than before, or was restored from a backup. Nothing "
                "was written. Restart the query if that is meant; rows that the group is past and "
                "this table lacks come only after a reset of the group's offsets"
            )
        self._table = table
        self._read_to = -1

    def _refuse_old_folder(self) -> None:
        folder = local_folder(self.uri)
        if folder is not None and (folder / _OLD_LOG_FOLDER).is_dir():
            raise SinkError(
                f"{self.uri} is a folder of a FolderSink, whose format is gone: name a new path, "
                "and see CHANGELOG.md for how to move its rows"
            )

    # --- application transactions ----------------------------------------------------------------

    def _follow(self, table: DeltaTable) -> None:
        """Take what is new up to the table's version."""
        if self._read_to == table.version():
            return
        if obstacles := sorted(_obstacles(table)):
            raise SinkError(
                f"{self.uri} asks for {', '.join(obstacles)}, which this sink doesn't do; write to "
                "a table without"
            )
        if self._read_to < 0:
            self._begin(table)
        while self._read_to < table.version():
            try:
                commit = self._read(f"{LOG_FOLDER}/{self._read_to + 1:020d}.json")
            except FileNotFoundError:  # Deleted as old; a checkpoint has what was in it.
                before = self._read_to
                self._begin(table)
                if self._read_to <= before:
                    raise SinkError(
                        f"{self.uri}: version {before + 1} of its log is missing, and no "
                        "checkpoint has it"
                    ) from None
                continue
            self._take(_transactions_in(commit))
            self._read_to += 1
        self._newest = self._look()

    def _begin(self, table: DeltaTable) -> None:
        """Read what the last checkpoint says, if there is one."""
        self.transactions, self._read_to = {}, -1
        try:
            version = json.loads(self._read(f"{LOG_FOLDER}/{_LAST_CHECKPOINT}"))["version"]
        except FileNotFoundError:
            return
        while version > table.version():  # Somebody has just written it.
            table.update_incremental()
        files = self._store.get_file_info(pa_fs.FileSelector(LOG_FOLDER))
        start = f"{version:020d}.checkpoint."
        for path in (file.path for file in files if file.base_name.startswith(start)):
            if path.endswith(".json"):
                self._take(_transactions_in(self._read(path)))
            else:
                checkpoint = pq.ParquetFile(self._store.open_input_file(path)).read(["txn"])
                for column in checkpoint.columns:
                    self._take(column.drop_null().to_pylist())
        self._read_to = version

    def _take(self, transactions: Iterable[Mapping[str, Any]]) -> None:
        self.transactions |= {each["appId"]: each["version"] for each in transactions}

    # --- files -----------------------------------------------------------------------------------

    @cached_property
    def _store(self) -> pa_fs.FileSystem:
        return file_system(self.uri, self._options)

    def _read(self, path: str) -> bytes:
        with self._store.open_input_file(path) as file:
            return bytes(file.read())

    def _stat(self, path: str) -> tuple[int | None, int | None]:
        """Return size and time of a file, both None if it isn't there."""
        (info,) = self._store.get_file_info([path])
        return (info.size, info.mtime_ns) if info.is_file else (None, None)

    def _look(self) -> tuple[int | None, int | None]:
        """Look at the newest known commit: if it is another one now, so is the table."""
        return self._stat(f"{LOG_FOLDER}/{self.version:020d}.json")

    def _fsync_log(self, version: int) -> None:
        """Put the commits behind *version* on disk, and the checkpoint that may follow one."""
        if self._folder is None:
            return
        log = self._folder / LOG_FOLDER
        names = [_LAST_CHECKPOINT]
        for number in count(version + 1):
            if not (log / f"{number:020d}.json").exists():
                break
            names += [f"{number:020d}.json", f"{number:020d}.checkpoint.parquet"]
        for name in names:
            with suppress(FileNotFoundError):
                fsync_path(log / name)
        fsync_path(log)


def _in_one_line(error: Exception) -> str:
    """Return what the library says, without the picture that it makes of the causes.

    Errors with these words hide the library's own: Spark shows the tracebacks of a whole chain.
    """
    return " ".join(_DRAWING.sub("", str(error)).split())


def _transactions_in(commit: bytes) -> list[dict[str, Any]]:
    """Return the transactions of a commit, which has an action a line."""
    lines = [line for line in commit.splitlines() if b'"txn"' in line]
    return [action["txn"] for line in lines if "txn" in (action := json.loads(line))]


def _add_action(file: Written, at_ms: int) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.bytes,
        partition_values=file.partition_values,
        modification_time=at_ms,
        data_change=True,
        stats=file.stats,
    )


def _obstacles(table: DeltaTable) -> set[str]:
    """Return what a table asks of its writers, and this one doesn't do."""
    metadata, protocol = table.metadata(), table.protocol()
    found = set(protocol.writer_features or ()) - _FEATURES
    for name, value in metadata.configuration.items():
        if (
            name.startswith("delta.constraints.")
            or (name == "delta.columnMapping.mode" and value != "none")
            # It would take positions for old, and drop them.
            or name == "delta.setTransactionRetentionDuration"
        ):
            found.add(name)
    columns = json.loads(table.schema().to_json())["fields"]
    return found | {
        name
        for column in columns
        for name in column["metadata"]
        if name in {"delta.invariants", "delta.generationExpression"}
        or name.startswith("delta.identity.")
    }
