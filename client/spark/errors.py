"""What ends a query, with messages that say what to do. None of these is retried by Spark."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def message_alone(*errors: type[Exception]) -> Iterator[None]:
    """Have Spark show these errors by their message alone; also as a decorator.

    Else the message comes last, after a traceback about the insides of this package. For Spark's
    Python processes only, each of which ends with the error.
    """
    try:
        yield
    except errors:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # Spark looks when it handles the exception.
        raise


class CoordinatedSourceError(RuntimeError):
    """Base class of what the coordinated source raises."""


class CoordinatorTimeout(CoordinatedSourceError):
    """No answer or no assignment within ``coordinatorTimeout``, where returning is not allowed."""


class FencedError(CoordinatedSourceError):
    """The group removed this reader, and the option ``onFence`` is ``fail``."""


class GroupLossError(CoordinatedSourceError):
    """The coordinator has forgotten where the group was, and ``onGroupLoss`` is ``error``."""


class DataLossError(CoordinatedSourceError):
    """Rows between the committed offset and the log's bounds are gone."""


class LogFailed(CoordinatedSourceError):
    """The log raised something that won't pass, or for too long; the message says where."""


class CheckpointError(CoordinatedSourceError):
    """A checkpoint can't be read, or belongs to another group or to other topics."""


class PythonMismatch(CoordinatedSourceError):
    """Spark's workers run on another Python than the program; the message says what to set."""


class StatefulQueryError(CoordinatedSourceError):
    """The query has state, which doesn't move with a partition."""


class DrainTimeout(CoordinatedSourceError):
    """The reader did not commit and release everything in time; the query still runs."""
