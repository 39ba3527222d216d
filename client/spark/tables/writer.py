"""Writes the committed offsets of whole groups from a DataFrame: a reset, or a migration."""

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from client.blocking import connect_blocking
from client.spark.options import OptionError
from client.spark.tables.bulk import GroupResult, How, bulk_write, check, summary, write_report
from client.spark.tables.bulk_plan import COLUMNS, by_group, normal_columns
from client.spark.tables.clients import CLIENT_ID, Target
from client.spark.tables.given import Given

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

OPTIONS: Final = (
    "coordinator",
    "dryRun",
    "force",
    "skipRefused",
    "report",
    "coordinatorTimeout",
)


class WriteOptions(NamedTuple):
    """The checked options of one write."""

    target: Target
    how: How
    report: str | None


class Rows(WriterCommitMessage):
    """What one task has read, on its way to the driver, which alone sees whole groups."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def parse_options(options: Mapping[str, str]) -> WriteOptions:
    """Check all options and fill in the defaults.

    Raises:
        OptionError: with a message that names the option and what it may be.

    """
    given = Given(options, OPTIONS)
    parsed = WriteOptions(
        Target(given.addresses(), given.duration_ms("coordinatorTimeout", "60s")),
        How(
            dry_run=given.flag("dryRun", default=False),
            force=given.flag("force", default=False),
            skip_refused=given.flag("skipRefused", default=False),
        ),
        given.text("report"),
    )
    if parsed.how.dry_run and parsed.report is None:
        raise OptionError(
            "option 'report' is missing: a dry run writes nothing but a report, so name a file "
            "for it (or call write_group_offsets, which returns it)"
        )
    return parsed


class GroupOffsetsWriter(DataSourceArrowWriter):
    """Brings the rows to the driver, checks all of them, and writes group by group."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Rows:
        """Take the rows of one task, on an executor."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, COLUMNS) as out:
            for batch in iterator:
                out.write_table(normal_columns(pa.Table.from_batches([batch])))
        return Rows(sink.getvalue().to_pybytes())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write what all tasks have read, on the driver.

        Raises:
            BulkWriteError: some groups were not written.

        """
        parts = [
            pa.ipc.open_stream(message.data).read_all()
            for message in messages
            if isinstance(message, Rows)
        ]
        rows = pa.concat_tables(parts) if parts else COLUMNS.empty_table()
        results = write_table(rows, self._options)
        check(results, self._options.how)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: nothing was written before all rows were there."""


def write_table(rows: pa.Table, options: WriteOptions) -> list[GroupResult]:
    """Write the offsets in *rows*, and the report; return what became of each group.

    Raises:
        BulkWriteError: the rows can't be written as they are; nothing was.
        CoordinatorUnavailable: nobody answered; nothing was written.
        OSError: the report can't be written; the offsets weren't either if it was at once.

    """
    groups = by_group(rows)

    def planned(plans: list[GroupResult]) -> None:
        if options.report is not None:
            write_report(plans, options.report)

    with connect_blocking(
        options.target.addresses,
        client_id=CLIENT_ID,
        request_timeout_ms=options.target.timeout_ms,
    ) as client:
        # What was committed before is on file before it is overwritten, whatever happens then.
        results = bulk_write(client, groups, options.how, planned)
    if options.report is not None:
        write_report(results, options.report)
    logger.info("wrote offsets from a DataFrame: %s", summary(results))
    return results


def write_group_offsets(
    df: "DataFrame",
    coordinator: str,
    *,
    dry_run: bool = False,
    force: bool = False,
    skip_refused: bool = False,
    timeout: str = "60s",
) -> list[GroupResult]:
    """Write the committed offsets of whole groups, from this process; return what became of each.

    The same as ``df.write.format("group_offsets")``, for programs that look at the report and
    decide for themselves: it raises for nothing that is in it.

    Args:
        df: With the columns group, topic, partition and offset, and maybe leader_epoch and
            metadata. All rows come to this process.
        coordinator: Its host:port.
        dry_run: Write nothing, only report.
        force: Write groups that have members, too: these are removed and join again.
        skip_refused: Write the others where a group can't be written; else, write none.
        timeout: How long to try to reach the coordinator.

    Raises:
        OptionError: an argument is impossible.
        BulkWriteError: the rows can't be written as they are; nothing was.
        CoordinatorUnavailable: nobody answered; nothing was written.

    """
    given = Given({"coordinator": coordinator, "timeout": timeout}, ("coordinator", "timeout"))
    options = WriteOptions(
        Target(given.addresses(), given.duration_ms("timeout", timeout)),
        How(dry_run=dry_run, force=force, skip_refused=skip_refused),
        None,
    )
    return write_table(normal_columns(df.toArrow()), options)
