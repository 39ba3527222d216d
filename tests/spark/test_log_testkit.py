"""The conformance kit: good logs pass it, and each way to be wrong is told by its rule."""

import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from unittest import SkipTest

import pyarrow as pa
import pytest

from client.spark.logs.folder import FolderLog
from client.spark.logs.partition_log import LogError
from client.spark.logs.testkit import CHECKS, Check, LogCheckFailed, LogSubject, check_log
from protocol.partition import TopicPartition
from tests.spark.log_subjects import FolderSubject


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_the_folder_log_keeps_the_rules(check: Check, tmp_path: Path) -> None:
    """It is the example for logs of one's own."""
    check(FolderSubject(tmp_path))


def test_the_kit_runs_without_a_test_runner(tmp_path: Path) -> None:
    """What a subject can't do is passed over."""
    made: list[LogSubject] = []

    def make() -> LogSubject:
        subject = _NoDeletion(tmp_path / str(len(made)))
        made.append(subject)
        return subject

    check_log(make)

    assert len(made) == len(CHECKS)
    with pytest.raises(SkipTest, match="_NoDeletion can't do what deleted needs"):
        next(check for check in CHECKS if check.name == "deleted")(make())


class _NoDeletion(FolderSubject):
    def delete_before(self, partition: int, offset: int) -> None:
        raise NotImplementedError


Batches = Iterator[pa.RecordBatch]


class DropsARow(FolderLog):
    """Loses the last row of a range."""

    def read(self, topic: str, partition: int, start: int, end: int) -> Batches:
        """Read less."""
        return super().read(topic, partition, start, max(start, end - 1))


class ReadsTooFar(FolderLog):
    """Returns a row of the next range."""

    def read(self, topic: str, partition: int, start: int, end: int) -> Batches:
        """Read more, where there is more."""
        return super().read(topic, partition, start, min(end + 1, self.bounds(topic, partition)[1]))


class StopsAtTheEnd(FolderLog):
    """Returns what there is of a range that goes beyond the log."""

    def read(self, topic: str, partition: int, start: int, end: int) -> Batches:
        """Read less, where there is less."""
        low, high = self.bounds(topic, partition)
        return super().read(topic, partition, max(start, low), min(end, high))


class OffByOne(FolderLog):
    """Its offsets depend on the range that is read."""

    def read(self, topic: str, partition: int, start: int, end: int) -> Batches:
        """Read other rows when a range begins in the middle."""
        shift = 1 if start % 2 else 0
        return super().read(topic, partition, start - shift, end - shift)


class PromisesTooMuch(FolderLog):
    """Its end comes before its rows."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return an end that isn't there."""
        start, end = super().bounds(topic, partition)
        return start, end + (1 if end > start else 0)


class EndGoesBack(FolderLog):
    """Its bounds jump."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return an older end now and then."""
        start, end = super().bounds(topic, partition)
        if threading.current_thread() is threading.main_thread():
            self.calls = getattr(self, "calls", 0) + 1
        return start, start if getattr(self, "calls", 0) % 7 == 6 else end


class NeverSeesNews(FolderLog):
    """Caches its bounds for good."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return what was there first."""
        self.first: tuple[int, int]
        if not hasattr(self, "first"):
            self.first = super().bounds(topic, partition)
        return self.first


class BoundsUpsideDown(FolderLog):
    """Confuses start and end."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the end first."""
        start, end = super().bounds(topic, partition)
        return end + 1, start


class UnsortedPartitions(FolderLog):
    """Lists partitions as they come."""

    def partitions(self, topic: str) -> list[int]:
        """Return the last one first."""
        return super().partitions(topic)[::-1]


class FixedPartitions(FolderLog):
    """Doesn't look again."""

    def partitions(self, topic: str) -> list[int]:
        """Return what there was."""
        super().partitions(topic)
        return [0, 1]


class KeyErrors(FolderLog):
    """Lets the user guess."""

    def partitions(self, topic: str) -> list[int]:
        """Raise what says nothing."""
        try:
            return super().partitions(topic)
        except LogError:
            raise KeyError(topic) from None


class NoErrors(FolderLog):
    """Knows every topic."""

    def partitions(self, topic: str) -> list[int]:
        """Return anything."""
        return [0, 1]


class OtherSchema(FolderLog):
    """Promises other columns than it has."""

    def schema(self, topic: str) -> pa.Schema:
        """Return another type."""
        return pa.schema([("id", pa.int32()), ("name", pa.string())])


class MissingColumn(FolderLog):
    """Promises a column that it doesn't have."""

    def schema(self, topic: str) -> pa.Schema:
        """Return a column too many."""
        return super().schema(topic).append(pa.field("more", pa.int8()))


class ReservedColumn(FolderLog):
    """Has a column that the source adds."""

    def schema(self, topic: str) -> pa.Schema:
        """Return it."""
        return super().schema(topic).append(pa.field("range_end", pa.int64()))


class NoOffsetColumn(FolderLog):
    """Has gaps, and doesn't say where."""

    dense_offsets = False


class FallingOffsets(FolderLog):
    """Has gaps, and an order of its own."""

    dense_offsets = False

    def read(self, topic: str, partition: int, start: int, end: int) -> Batches:
        """Yield offsets that fall."""
        at = start
        for batch in super().read(topic, partition, start, end):
            falling = pa.array(range(at + batch.num_rows - 1, at - 1, -1), pa.int64())
            at += batch.num_rows
            yield batch.append_column("offset", falling)


class YieldsTables(FolderLog):
    """Yields what Spark doesn't take."""

    def read(self, topic: str, partition: int, start: int, end: int) -> Batches:
        """Yield tables."""
        for batch in super().read(topic, partition, start, end):
            yield pa.Table.from_batches([batch])


class ForgetsInAnotherProcess(FolderLog):
    """Keeps something that executors don't have."""

    main = threading.current_thread()
    known: Mapping[str, str] = {}

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Note that this process is the one."""
        type(self).known = {topic: "seen"}
        return super().bounds(topic, partition)

    def read(self, topic: str, partition: int, start: int, end: int) -> Batches:
        """Need what `bounds` noted."""
        self.known[topic]
        return super().read(topic, partition, start, end)


class NotThreadSafe(FolderLog):
    """Breaks when two threads call it."""

    def partitions(self, topic: str) -> list[int]:
        """Refuse any thread but the first."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("used in another thread")
        return super().partitions(topic)


class WrongTimes(FolderLog):
    """Begins at the end, whatever the time."""

    def offsets_at(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the end."""
        return {tp: self.bounds(*tp)[1] for tp in partitions}


class UnstableId(FolderLog):
    """Is a new topic each time."""

    def topic_id(self, topic: str) -> str:
        """Return the address of this object."""
        return str(id(self))

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        _alive.append(self)


_alive: list[FolderLog] = []


class LosesDeleted(FolderLog):
    """Counts offsets from the first row that is left."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Begin at 0 always."""
        start, end = super().bounds(topic, partition)
        return 0, end - start


@pytest.mark.parametrize(
    ("log", "rule", "message"),
    [
        (DropsARow, "ends", r"yielded 2 rows, not 3: a dense log has one row per offset"),
        (ReadsTooFar, "cuts", r"rows, not "),
        (StopsAtTheEnd, "beyond", r"of which the log ends at 4, returned .*must raise a LogError"),
        (StopsAtTheEnd, "deleted", r"of which the log begins at .* must raise a LogError"),
        (OffByOne, "cuts", r"but as part of the range 0 to 16 these rows are"),
        (PromisesTooMuch, "ends", r"3 rows were appended at 0, but the end is 4"),
        (EndGoesBack, "while_appending", r"the end went back from \d+ to 0"),
        (NeverSeesNews, "ends", r"must show within 0.2 s, but the bounds are \(0, 0\)"),
        (BoundsUpsideDown, "empty", r"returned \(1, 0\): the first offset is at least 0"),
        (UnsortedPartitions, "partitions", r"partitions\('t'\) returned \[1, 0\]"),
        (FixedPartitions, "growth", r"got another partition, but there are still only \[0, 1\]"),
        (KeyErrors, "unknown", r"raised KeyError \('t-nope'\), not a LogError"),
        (NoErrors, "unknown", r"partitions\('t-nope'\) returned \[0, 1\], where it must raise"),
        (OtherSchema, "ends", r"column 'id' is int64, but schema\(\) says int32"),
        (MissingColumn, "ends", r"the column\(s\) more of schema\(\) are missing"),
        (ReservedColumn, "schema", r"columns that the source adds: range_end"),
        (NoOffsetColumn, "ends", r"dense_offsets is False, but there is no column 'offset'"),
        (FallingOffsets, "ends", r"offsets rise"),
        (YieldsTables, "ends", r"yielded a Table, not a pyarrow.RecordBatch"),
        (ForgetsInAnotherProcess, "executor", r"another process, .* can't read it: KeyError: 't'"),
        (NotThreadSafe, "while_appending", r"a second thread got RuntimeError"),
        (FolderLog, "all_bounds", r"more than 0 s \(LogSubject.bounds_limit_s\)"),
        (WrongTimes, "times", r"must be the first offset \(0\) twice"),
        (UnstableId, "names", r"topic_id\(\) returned"),
        (
            LosesDeleted,
            "deleted",
            r"the first offset must rise within 0.2 s, but the bounds are \(0, 5\)",
        ),
    ],
)
def test_a_broken_log_is_told_what_is_wrong(
    log: type[FolderLog], rule: str, message: str, tmp_path: Path
) -> None:
    """By the rule's name, the call, and the rule itself."""
    check = next(check for check in CHECKS if check.name == rule)
    kind = _Impatient if "within 0.2 s" in message or rule == "growth" else _Patient
    subject = kind(tmp_path, f"{log.__module__}:{log.__name__}")

    with pytest.raises(LogCheckFailed, match=f"(?s)^{rule}: .*{message}.*The rule: [A-Z]"):
        check(subject)


class _Patient(FolderSubject):
    patience_s = 60.0
    bounds_limit_s = 0.0  # Even a good log is slower.


class _Impatient(_Patient):
    patience_s = 0.2
