"""What each error code means for a member of a group: one table."""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from protocol.errors import ErrorCode


class Asked(Enum):
    """Which kind of request an error code answers."""

    JOIN = "join"
    SYNC = "sync"
    AS_MEMBER = "heartbeat or commit"


class Reaction(Enum):
    """What a member does about an answer."""

    ACCEPT = "accept"
    JOIN_WITH_ID = "join at once with the id that the answer carries"
    REJOIN = "join again, keeping the member id"
    REJOIN_WITHOUT = "the partitions are gone; join again, keeping the member id"
    REJOIN_AS_NEW = "the partitions are gone; join again without a member id"
    NOTE_REBALANCE = "keep the partitions, rejoin when the user asks"
    LOSE_GENERATION = "the partitions are gone; rejoin with the same id when the user asks"
    LOSE_MEMBERSHIP = "the partitions and the member id are gone; rejoin when the user asks"
    FAIL = "tell the user"


_C, _R = ErrorCode, Reaction

REJOINS: Final = frozenset({_R.REJOIN, _R.REJOIN_WITHOUT, _R.REJOIN_AS_NEW})

REACTIONS: Final[Mapping[tuple[Asked, int], Reaction]] = {
    (Asked.JOIN, _C.NONE): _R.ACCEPT,
    (Asked.JOIN, _C.MEMBER_ID_REQUIRED): _R.JOIN_WITH_ID,
    (Asked.JOIN, _C.UNKNOWN_MEMBER_ID): _R.REJOIN_AS_NEW,
    (Asked.JOIN, _C.ILLEGAL_GENERATION): _R.REJOIN_WITHOUT,
    (Asked.JOIN, _C.REBALANCE_IN_PROGRESS): _R.REJOIN,
    (Asked.JOIN, _C.SUPERSEDED): _R.REJOIN,
    (Asked.SYNC, _C.NONE): _R.ACCEPT,
    (Asked.SYNC, _C.UNKNOWN_MEMBER_ID): _R.REJOIN_AS_NEW,
    # The group went on without this member, and may have given its partitions away.
    (Asked.SYNC, _C.ILLEGAL_GENERATION): _R.REJOIN_WITHOUT,
    (Asked.SYNC, _C.REBALANCE_IN_PROGRESS): _R.REJOIN,
    (Asked.SYNC, _C.SUPERSEDED): _R.REJOIN,
    (Asked.AS_MEMBER, _C.NONE): _R.ACCEPT,
    (Asked.AS_MEMBER, _C.REBALANCE_IN_PROGRESS): _R.NOTE_REBALANCE,
    (Asked.AS_MEMBER, _C.ILLEGAL_GENERATION): _R.LOSE_GENERATION,
    (Asked.AS_MEMBER, _C.UNKNOWN_MEMBER_ID): _R.LOSE_MEMBERSHIP,
    # Emptied of members and deleted meanwhile.
    (Asked.AS_MEMBER, _C.GROUP_ID_NOT_FOUND): _R.LOSE_MEMBERSHIP,
}


def reaction(asked: Asked, code: int) -> Reaction:
    """Return what to do; a code that is not in the table is never taken for success."""
    return REACTIONS.get((asked, code), Reaction.FAIL)
