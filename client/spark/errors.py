"""What ends a query, with messages that say what to do. None of these is retried by Spark."""

from client.exceptions import FatalError
from client.spark.options import ReaderOptions
from protocol.errors import ErrorCode


class CoordinatedSourceError(RuntimeError):
    """Base class of what the coordinated source raises."""


class CoordinatorTimeout(CoordinatedSourceError):
    """No answer or no assignment within ``coordinatorTimeout``, where returning is not allowed."""


class FencedError(CoordinatedSourceError):
    """The group removed this reader, and the option ``onFence`` is ``fail``."""


class DataLossError(CoordinatedSourceError):
    """Rows between the committed offset and the log's bounds are gone."""


class LogFailed(CoordinatedSourceError):
    """The log raised something that won't pass, or for too long; the message says where."""


class CheckpointError(CoordinatedSourceError):
    """A checkpoint can't be read, or belongs to another group or to other topics."""


class StatefulQueryError(CoordinatedSourceError):
    """The query has state, which doesn't move with a partition."""


class DrainTimeout(CoordinatedSourceError):
    """The reader did not commit and release everything in time; the query still runs."""


def explained(error: FatalError, options: ReaderOptions) -> str | None:
    """Return what a refusal by the group means for the stream's options, None if nothing."""
    match error.code if error.code is not None else error.group_code:
        case ErrorCode.FENCED_INSTANCE_ID:
            return (
                f"option 'groupInstanceId': another reader of group {options.group!r} came with "
                f"the name {options.group_instance_id!r} and has this one's place. Each query "
                "that runs at the same time needs a name of its own, also two queries over one "
                f"DataFrame ({error})"
            )
        case ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            return (
                f"option 'assignor' is {','.join(options.assignors)!r}: group {options.group!r} "
                "has members that offer none of these. Readers of the release before offer "
                "'range' only: set it to 'cooperative,range' as long as such are in the group, "
                f"then to 'cooperative' ({error})"
            )
        case _:
            return None
