"""Checks for a `PartitionLog` of your own: all that the coordinated source relies on.

Say how to fill your log in a `LogSubject`, and let pytest (or anything else) run the checks::

    from client.spark.logs.testkit import CHECKS, Check, LogSubject

    class Orders(LogSubject):
        def options(self): return {"log": "mypkg.logs:OrdersLog", "log.url": self.url}
        def append(self, partition, count): ...

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_the_orders_log_keeps_the_rules(check: Check, tmp_path):
        check(Orders(tmp_path))

Each check takes a fresh subject. A check whose operation the subject doesn't have is skipped. A
`LogCheckFailed` says which rule is broken, and by what call.
"""

import json
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from unittest import SkipTest

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from client.spark.logs.partition_log import OFFSET_COLUMN, LogError, PartitionLog, load_log
from protocol.partition import TopicPartition

__all__ = ["CHECKS", "Check", "LogCheckFailed", "LogSubject", "check_log"]

POLL_S: Final = 0.02
RESERVED: Final = ("topic", "partition", OFFSET_COLUMN, "range_start", "range_end", "generation")
_FAR_FUTURE_MS: Final = 32_503_680_000_000  # The year 3000.


class LogCheckFailed(AssertionError):
    """A log breaks a rule; the message says which, and how it showed."""


class LogSubject(ABC):
    """A topic of the log under test, and how to change it.

    Attributes:
        topic: a topic that is there, with at least one partition and no rows.
        patience_s: how soon appended or deleted rows show in the bounds.
        bounds_limit_s: how long the bounds of all partitions may take; they are asked for on
            every trigger.

    """

    topic: str = "t"
    patience_s: float = 5.0
    bounds_limit_s: float = 1.0

    @abstractmethod
    def options(self) -> Mapping[str, str]:
        """Return the options of a stream over the log, ``log`` among them."""

    @abstractmethod
    def append(self, partition: int, count: int) -> None:
        """Append *count* rows, any, to a partition of the topic."""

    def delete_before(self, partition: int, offset: int) -> None:
        """Delete the rows before *offset*, or as many of them as the log can."""
        raise NotImplementedError

    def grow(self) -> None:
        """Give the topic one more partition."""
        raise NotImplementedError


class Check(NamedTuple):
    """One rule, callable with a fresh subject.

    Raises when called:
        LogCheckFailed: the log breaks the rule.
        SkipTest: the subject can't do what the check needs.

    """

    name: str
    rule: str
    function: Callable[[LogSubject], None]

    def __call__(self, subject: LogSubject) -> None:
        """Check a log."""
        try:
            self.function(subject)
        except NotImplementedError as error:
            raise SkipTest(f"{type(subject).__name__} can't do what {self.name} needs") from error
        except LogCheckFailed as error:
            raise LogCheckFailed(f"{self.name}: {error}\nThe rule: {self.rule}") from None
        except Exception as error:
            error.add_note(f"In the check {self.name}. The rule: {self.rule}")
            raise

    def __str__(self) -> str:
        return self.name


def check_log(make_subject: Callable[[], LogSubject]) -> None:
    """Run all checks, each with a subject of its own, without a test runner.

    Raises:
        LogCheckFailed: the first rule that is broken.

    """
    for check in CHECKS:
        try:
            check(make_subject())
        except SkipTest:
            continue


# --- The rules -----------------------------------------------------------------------------

# The docstring of a rule is what a log that breaks it is told.


def partitions(subject: LogSubject) -> None:
    """Partitions are numbers from 0 on, ascending, the same in every process."""
    log = open_log(subject)
    found = log.partitions(subject.topic)
    if not found or found[0] < 0 or found != sorted(set(found)):
        raise LogCheckFailed(f"partitions({subject.topic!r}) returned {found}")
    if open_log(subject).partitions(subject.topic) != found:
        raise LogCheckFailed("another object with the same options has other partitions")


def growth(subject: LogSubject) -> None:
    """A topic may get more partitions, and never loses one."""
    log = open_log(subject)
    before = log.partitions(subject.topic)
    subject.grow()
    give_up_s = time.monotonic() + subject.patience_s
    while len(log.partitions(subject.topic)) <= len(before):
        if time.monotonic() > give_up_s:
            raise LogCheckFailed(
                f"the topic got another partition, but there are still only {before}"
            )
        time.sleep(POLL_S)
    after = log.partitions(subject.topic)
    if after[: len(before)] != before:
        raise LogCheckFailed(f"the partitions were {before} and are now {after}: old ones stay")
    bounds_of(log, subject, after[-1])


def unknown(subject: LogSubject) -> None:
    """What isn't there is a LogError, so that the query ends with a message."""
    log = open_log(subject)
    nope = f"{subject.topic}-nope"
    refuses(f"partitions({nope!r})", lambda: log.partitions(nope))
    refuses(f"bounds({subject.topic!r}, 99999)", lambda: log.bounds(subject.topic, 99_999))


def schema(subject: LogSubject) -> None:
    """Columns are known before any row, the same in every process, without the source's own."""
    log = open_log(subject)
    schema = log.schema(subject.topic)
    if not isinstance(schema, pa.Schema):
        raise LogCheckFailed(f"schema({subject.topic!r}) returned a {type(schema).__name__}")
    if taken := set(schema.names) & set(RESERVED):
        raise LogCheckFailed(
            f"schema() has columns that the source adds: {', '.join(sorted(taken))}"
        )
    if len(set(schema.names)) < len(schema.names):
        raise LogCheckFailed(f"schema() has the same column twice: {schema.names}")
    try:
        from_arrow_schema(schema)
    except Exception as error:
        raise LogCheckFailed(f"Spark has no types for the columns of schema(): {error}") from error
    if not open_log(subject).schema(subject.topic).equals(schema):
        raise LogCheckFailed("another object with the same options has other columns")


def empty(subject: LogSubject) -> None:
    """An empty partition has equal bounds."""
    log = open_log(subject)
    start, end = bounds_of(log, subject)
    if start != end:
        raise LogCheckFailed(f"nothing was appended, but the bounds are ({start}, {end})")
    if offsets_of(log, subject, start, end):
        raise LogCheckFailed("an empty range yielded rows")


def ends(subject: LogSubject) -> None:
    """Appended rows show in the bounds, and all up to the end can be read."""
    log = open_log(subject)
    for count in (3, 1, 40):
        before = bounds_of(log, subject)[1]
        start, end = appended(log, subject, count)
        if log.dense_offsets and end != before + count:
            raise LogCheckFailed(f"{count} rows were appended at {before}, but the end is {end}")
        found = offsets_of(open_log(subject), subject, start, end)
        if len([offset for offset in found if offset >= before]) != count:
            raise LogCheckFailed(
                f"{count} rows were appended at {before}, but {found} are read up to {end}"
            )


def cuts(subject: LogSubject) -> None:
    """A row has the same offset in whatever range it is read."""
    log = open_log(subject)
    for count in (5, 2, 9):
        start, end = appended(log, subject, count)
    whole = dict(
        zip(offsets_of(log, subject, start, end), rows_of(log, subject, start, end), strict=True)
    )
    for low in range(start, end + 1):
        for high in range(low, end + 1):
            expected = {at: row for at, row in whole.items() if low <= at < high}
            offsets = offsets_of(log, subject, low, high)
            found = dict(zip(offsets, rows_of(log, subject, low, high), strict=True))
            if found != expected:
                raise LogCheckFailed(
                    f"read({subject.topic!r}, 0, {low}, {high}) yielded {found}, but as part of "
                    f"the range {start} to {end} these rows are {expected}"
                )


def again(subject: LogSubject) -> None:
    """The same range has the same rows, also after an abandoned read and new rows."""
    log = open_log(subject)
    start, end = appended(log, subject, 10)
    first = rows_of(log, subject, start, end)
    iterator = iter(log.read(subject.topic, 0, start, end))
    next(iterator)
    del iterator  # As in a task that is cancelled.
    appended(log, subject, 5)
    for again in (
        rows_of(log, subject, start, end),
        rows_of(open_log(subject), subject, start, end),
    ):
        if again != first:
            raise LogCheckFailed(f"the rows from {start} to {end} were {first}, and later {again}")


def beyond(subject: LogSubject) -> None:
    """Rows that aren't there are a LogError: a short read would be silent loss."""
    log = open_log(subject)
    _, end = appended(log, subject, 4)
    refuses(
        f"read({subject.topic!r}, 0, {end - 1}, {end + 3}), of which the log ends at {end},",
        lambda: list(log.read(subject.topic, 0, end - 1, end + 3)),
    )


def deleted(subject: LogSubject) -> None:
    """Deleting at the front moves the first offset and nothing else."""
    log = open_log(subject)
    for _ in range(4):
        start, end = appended(log, subject, 5)
    before = dict(
        zip(offsets_of(log, subject, start, end), rows_of(log, subject, start, end), strict=True)
    )
    subject.delete_before(0, end - 5)
    first, last = wait_for_bounds(
        log, subject, lambda now: now[0] > start, "rows were deleted: the first offset must rise"
    )
    if last != end:
        raise LogCheckFailed(
            f"rows were deleted at the front, and the end moved from {end} to {last}"
        )
    offsets = offsets_of(open_log(subject), subject, first, end)
    after = dict(zip(offsets, rows_of(log, subject, first, end), strict=True))
    if after != {at: row for at, row in before.items() if at >= first}:
        raise LogCheckFailed(
            f"rows were deleted at the front, and those from {first} on changed offsets"
        )
    refuses(
        f"read({subject.topic!r}, 0, {start}, {end}), of which the log begins at {first},",
        lambda: list(log.read(subject.topic, 0, start, end)),
    )


def all_bounds(subject: LogSubject) -> None:
    """Bounds are asked for on every trigger: they are cheap, and alike."""
    log = open_log(subject)
    appended(log, subject, 3)
    asked = [TopicPartition(subject.topic, p) for p in log.partitions(subject.topic)]
    expected = {tp: log.bounds(*tp) for tp in asked}
    began_s = time.monotonic()
    found = log.all_bounds(asked)
    took_s = time.monotonic() - began_s
    if dict(found) != expected:
        raise LogCheckFailed(f"all_bounds() returned {found}, but bounds() {expected}")
    if took_s > subject.bounds_limit_s:
        raise LogCheckFailed(
            f"the bounds of {len(asked)} partitions took {took_s:.2f} s, more than "
            f"{subject.bounds_limit_s:g} s (LogSubject.bounds_limit_s)"
        )
    if log.all_bounds([]):
        raise LogCheckFailed("all_bounds([]) returned something")


def while_appending(subject: LogSubject) -> None:
    """Bounds never go back, nor promise what `read` can't reach yet; two threads may ask."""
    log = open_log(subject)
    stop = threading.Event()
    failures: list[BaseException] = []

    def guarded(action: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                action()
        except BaseException as error:  # noqa: BLE001 - raised again below.
            failures.append(error)

    other = threading.Thread(target=guarded, args=(lambda: _look(log, subject),), daemon=True)
    writer = threading.Thread(target=guarded, args=(lambda: _feed(subject),), daemon=True)
    at = bounds_of(log, subject)[1]
    other.start()
    writer.start()
    try:
        grown = 0
        give_up_s = time.monotonic() + subject.patience_s
        while grown < 10 and not failures:
            _, end = bounds_of(log, subject)
            if end < at:
                raise LogCheckFailed(f"the end went back from {at} to {end}")
            offsets_of(log, subject, at, end)
            if end > at:
                grown += 1
                give_up_s = time.monotonic() + subject.patience_s
            elif time.monotonic() > give_up_s:
                raise LogCheckFailed(f"rows are appended, but the end stays {end}")
            at = end
    except LogError as error:
        raise LogCheckFailed(
            f"a range up to the end of the bounds can't be read: {error}"
        ) from error
    finally:
        stop.set()
        writer.join()
        other.join()
    if failures:
        raise LogCheckFailed(
            f"a second thread got {failures[0]!r} from the same log"
        ) from failures[0]


def _feed(subject: LogSubject) -> None:
    subject.append(0, 3)
    time.sleep(0.005)


def _look(log: PartitionLog, subject: LogSubject) -> None:
    log.partitions(subject.topic)
    bounds_of(log, subject)
    time.sleep(0.001)


_EXECUTOR: Final = """
import json, sys
from client.spark.logs.partition_log import load_log
options, topic, start, end = json.loads(sys.argv[1])
print(sum(batch.num_rows for batch in load_log(options).read(topic, 0, start, end)))
"""


def executor(subject: LogSubject) -> None:
    """An executor has only the options, and imports the log by its name."""
    log = open_log(subject)
    start, end = appended(log, subject, 6)
    given = {name.lower(): value for name, value in subject.options().items()}
    done = subprocess.run(  # noqa: S603 - this very interpreter.
        [sys.executable, "-c", _EXECUTOR, json.dumps([given, subject.topic, start, end])],
        capture_output=True,
        check=False,
        text=True,
    )
    if done.returncode or int(done.stdout) != len(offsets_of(log, subject, start, end)):
        said = done.stderr.strip().splitlines() or [done.stdout]
        raise LogCheckFailed(
            f"another process, with nothing but the options, can't read it: {said[-1]}"
        )


def times(subject: LogSubject) -> None:
    """A start by time misses no row, or the log says that it can't."""
    log = open_log(subject)
    start, end = appended(log, subject, 4)
    tp = TopicPartition(subject.topic, 0)
    try:
        found = [log.offsets_at([tp], ms)[tp] for ms in (0, 1, _FAR_FUTURE_MS)]
    except LogError:
        return  # It says that it can't.
    if found != [start, start, end]:
        raise LogCheckFailed(
            f"offsets_at() for 1970 twice and for the year 3000 returned {found}: that must be the "
            f"first offset ({start}) twice, and the end ({end}), where no row is so late"
        )


def names(subject: LogSubject) -> None:
    """What is optional is right, where a log has it."""
    log = open_log(subject)
    try:
        topics = log.topics()
    except LogError:
        topics = [subject.topic]  # It says that it can't.
    if subject.topic not in topics or topics != sorted(set(topics)):
        raise LogCheckFailed(
            f"topics() returned {topics}, which must be ascending, with {subject.topic!r}"
        )
    hosts = log.hosts(subject.topic, 0)
    if isinstance(hosts, str) or not all(isinstance(host, str) for host in hosts):
        raise LogCheckFailed(f"hosts() returned {hosts!r}, which must be a sequence of names")
    first, second = log.topic_id(subject.topic), open_log(subject).topic_id(subject.topic)
    if first != second or not (first is None or isinstance(first, str)):
        raise LogCheckFailed(f"topic_id() returned {first!r} and then {second!r}")


CHECKS: Final = tuple(
    Check(function.__name__, function.__doc__ or "", function)
    for function in (
        partitions,
        growth,
        unknown,
        schema,
        empty,
        ends,
        cuts,
        again,
        beyond,
        deleted,
        all_bounds,
        while_appending,
        executor,
        times,
        names,
    )
)


# --- What the rules are made of ------------------------------------------------------------


def open_log(subject: LogSubject) -> PartitionLog:
    """Make a log as each process does: from the options, with names in lower case."""
    return load_log({name.lower(): value for name, value in subject.options().items()})


def bounds_of(log: PartitionLog, subject: LogSubject, partition: int = 0) -> tuple[int, int]:
    """Return the bounds of a partition, if they can be true."""
    start, end = log.bounds(subject.topic, partition)
    if not 0 <= start <= end:
        raise LogCheckFailed(
            f"bounds({subject.topic!r}, {partition}) returned ({start}, {end}): the first offset "
            "is at least 0 and never after the end"
        )
    return start, end


def offsets_of(log: PartitionLog, subject: LogSubject, start: int, end: int) -> list[Any]:
    """Read a range of partition 0, check what can be seen of it alone, return the rows' offsets."""
    call = f"read({subject.topic!r}, 0, {start}, {end})"
    schema = log.schema(subject.topic)
    found: list[Any] = []
    for batch in log.read(subject.topic, 0, start, end):
        if not isinstance(batch, pa.RecordBatch):
            raise LogCheckFailed(
                f"{call} yielded a {type(batch).__name__}, not a pyarrow.RecordBatch"
            )
        _check_columns(call, batch, schema, dense=log.dense_offsets)
        if log.dense_offsets:
            first = start + len(found)
            found += range(first, first + batch.num_rows)
        else:
            found += batch.column(OFFSET_COLUMN).to_pylist()
    if log.dense_offsets and len(found) != end - start:
        raise LogCheckFailed(
            f"{call} yielded {len(found)} rows, not {end - start}: a dense log has one row per "
            "offset, and raises LogError where it hasn't (or sets dense_offsets = False)"
        )
    for before, after in zip([start - 1, *found], [*found, end], strict=True):
        if after is None or not before < after:
            raise LogCheckFailed(
                f"{call} yielded the offset {after} after {before}: offsets rise, from "
                f"{start} to below {end}"
            )
    return found


def _check_columns(call: str, batch: pa.RecordBatch, schema: pa.Schema, *, dense: bool) -> None:
    names = list(batch.schema.names)
    if not dense:
        if OFFSET_COLUMN not in names:
            raise LogCheckFailed(
                f"{call}: dense_offsets is False, but there is no column '{OFFSET_COLUMN}'"
            )
        names.remove(OFFSET_COLUMN)
    missing = set(schema.names) - set(names)
    if missing:
        raise LogCheckFailed(
            f"{call}: the column(s) {', '.join(sorted(missing))} of schema() are missing"
        )
    for field in schema:
        found = batch.schema.field(field.name).type
        if found != field.type:
            raise LogCheckFailed(
                f"{call}: column {field.name!r} is {found}, but schema() says {field.type}"
            )


def rows_of(log: PartitionLog, subject: LogSubject, start: int, end: int) -> list[object]:
    """Return the rows of a range of partition 0."""
    return [row for batch in log.read(subject.topic, 0, start, end) for row in batch.to_pylist()]


def appended(log: PartitionLog, subject: LogSubject, count: int) -> tuple[int, int]:
    """Append to partition 0 and wait until the bounds show it; return them."""
    end = bounds_of(log, subject)[1]
    subject.append(0, count)
    return wait_for_bounds(
        log,
        subject,
        lambda now: now[1] >= end + count,
        f"of {count} rows appended after offset {end} the end must show",
    )


def wait_for_bounds(
    log: PartitionLog,
    subject: LogSubject,
    done: Callable[[tuple[int, int]], bool],
    what: str,
) -> tuple[int, int]:
    """Wait until the bounds of partition 0 are as they must become; return them."""
    give_up_s = time.monotonic() + subject.patience_s
    while not done(now := bounds_of(log, subject)):
        if time.monotonic() > give_up_s:
            raise LogCheckFailed(
                f"{what} within {subject.patience_s:g} s, but the bounds are {now}"
            )
        time.sleep(POLL_S)
    return now


def refuses(call: str, action: Callable[[], object]) -> None:
    """Check that a call raises a `LogError`."""
    try:
        result = action()
    except LogError as error:
        if not str(error):
            raise LogCheckFailed(f"{call} raised a LogError without a message") from error
    except Exception as error:
        raise LogCheckFailed(
            f"{call} raised {type(error).__name__} ({error}), not a LogError that says what is "
            "wrong and where"
        ) from error
    else:
        raise LogCheckFailed(f"{call} returned {result!r}, where it must raise a LogError")
