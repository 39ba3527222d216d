"""Whether a checkpoint may belong to this query. Pure.

Offsets come from the group, so a wrong checkpoint loses nothing by itself. But it is a sign of a
mix-up, and batch ids and output folders go with a checkpoint: better say so at once.
"""

import logging
from collections.abc import Callable

from client.spark.errors import CheckpointError
from client.spark.offsets import EndOffset
from client.spark.options import ReaderOptions

logger = logging.getLogger(__name__)


def check_checkpoint(
    end: EndOffset, options: ReaderOptions, is_subscribed: Callable[[str], bool]
) -> None:
    """Refuse a checkpoint of another group, or of other topics only.

    Args:
        end: the last offset in the checkpoint.
        options: those of this query.
        is_subscribed: whether this query reads a topic.

    Raises:
        CheckpointError: it is not this query's; the message says whose.

    """
    if end.reader is not None and end.reader.group != options.group:
        raise CheckpointError(
            f"the checkpoint is of group {end.reader.group!r}, but option 'group' is "
            f"{options.group!r}: give this query a new checkpoint (and output folder), or the "
            "group its old name. Offsets are kept by the group, not by the checkpoint"
        )
    before = {*end.topics, *(tp.topic for tp in end.ranges)}
    dropped = sorted(topic for topic in before if not is_subscribed(topic))
    if not dropped:
        return
    named = ", ".join(map(repr, dropped))
    if len(dropped) == len(before):
        raise CheckpointError(
            f"the checkpoint is of the topics {named}, which this query doesn't read (option "
            "'topics'): give it a new checkpoint (and output folder)"
        )
    logger.warning(
        "the checkpoint also has the topics %s, which this query doesn't read any more; the group "
        "keeps their offsets",
        named,
    )
