"""What the words of the table in test_requests_by_state.py mean: scenes, askers, requests."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from coordinator.group.core import GroupConfig
from protocol import messages as m
from protocol.consumer import Subscription, encode_subscription
from tests.group.context import GROUP, REBALANCE_MS, SESSION_MS, Context, assignment, subscription
from tests.packed import fetched

PARKED: Final = "park"
MISSING: Final = "missing"
STATES: Final = {
    MISSING: "Dead",
    "Empty": "Empty",
    "Prep": "PreparingRebalance",
    "Compl": "CompletingRebalance",
    "Stable": "Stable",
}
SHORT: Final = {state: short for short, state in STATES.items()}

INSTANCE, STRANGER = "i-1", "i-9"
OWNED: Final = {
    "leader": "flights-0",
    "follower": "flights-1",
    "static": "flights-2",
    "rejoiner": "flights-3",
}
# Kinds of groups, where it matters: what all members send with their JoinGroup.
KINDS: Final[Mapping[str, tuple[str, bytes]]] = {
    "connect": ("connect", b"opaque"),
    "unreadable": ("consumer", b"\x00"),
}


class Scene(NamedTuple):
    """A group in some state, and the ids of those who may ask."""

    context: Context
    ids: dict[str, str]  # leader, follower, static, fenced, rejoiner.
    type: str
    metadata: bytes

    @property
    def state(self) -> str:
        """The state in the words of the table."""
        return SHORT[self.context.state]

    @property
    def generation(self) -> int:
        """The current generation; for a group that isn't there one that it may have had."""
        return self.context.generation if self.state != MISSING else 5

    def join(
        self,
        member_id: str,
        instance_id: str | None = None,
        *,
        protocols: Mapping[str, bytes] | None = None,
        session_ms: int = SESSION_MS,
        protocol_type: str | None = None,
        client_id: str = "spark",
    ) -> int:
        """Send a JoinGroup; return its token."""
        offered = {"range": self.metadata} if protocols is None else protocols
        request = m.JoinGroupRequest(
            GROUP,
            session_ms,
            REBALANCE_MS,
            member_id,
            instance_id,
            self.type if protocol_type is None else protocol_type,
            tuple(m.JoinProtocol(name, data) for name, data in offered.items()),
            None,
        )
        return self.context.send(request, client_id)

    def given_id(self, client_id: str) -> str:
        """Ask for a member id."""
        answer = self.context.joined(self.join("", client_id=client_id))
        assert answer.error == 79
        return answer.member_id

    def sync(self, who: str, given: Mapping[str, bytes] | None = None) -> int:
        """Send the SyncGroup of a member; return its token."""
        shares = tuple(m.MemberAssignment(*share) for share in (given or {}).items())
        return self.context.send(
            m.SyncGroupRequest(GROUP, self.generation, self.ids[who], None, None, None, shares)
        )

    def sync_all(self) -> None:
        """Everybody syncs; each gets one partition."""
        given = {self.ids[who]: assignment(name) for who, name in OWNED.items()}
        for who in OWNED:
            self.sync(who, given)
        assert self.state == "Stable"

    def rejoin_all(self, *, but: str = "rejoiner") -> None:
        """All members but one join again."""
        for who in OWNED:
            if who != but:
                self.join(self.ids[who])


def scene(state: str, kind: str = "") -> Scene:
    """Return a group in *state*: four members, one static and replaced once.

    In PreparingRebalance the rejoiner has changed its protocols and waits for the others. In
    CompletingRebalance nobody has synced. In Stable each member owns one partition. In Empty
    they have all left. Each state but "missing" comes after at least one stable generation,
    except for the kind "first": there the group's first rebalance is under way.
    """
    size = len(OWNED) if kind == "full" else GroupConfig().group_max_size
    type_, metadata = KINDS.get(kind, ("consumer", subscription("flights")))
    here = Scene(Context(GroupConfig(group_max_size=size)), {}, type_, metadata)
    if state == MISSING:
        here.ids.update({who: f"{who}-gone" for who in (*OWNED, "fenced")})
        return here
    _first_join(here)
    if kind == "first" and state == "Prep":
        return here
    while here.state == "Prep":
        here.context.advance(1_000)
    if kind == "first" and state == "Compl":
        return here
    here.sync_all()
    _replace_static(here)
    steps: list[tuple[str, Callable[[], object]]] = [
        ("Prep", lambda: here.join(here.ids["rejoiner"], protocols={"range": metadata + b"."})),
        ("Compl", here.rejoin_all),
        ("Stable", here.sync_all),
    ]
    if state == "Empty":
        _leave(here, *((here.ids[who], None) for who in OWNED))
    else:
        for after, step in steps:
            step()
            if after == state:
                break
    assert here.state == state, (here.state, state)
    return here


def _first_join(here: Scene) -> None:
    for who in OWNED:
        if who == "static":
            continue
        here.ids[who] = here.given_id(who)
    for who in OWNED:
        if who != "static":
            here.join(here.ids[who], client_id=who)
    token = here.join("", INSTANCE, client_id="static")
    assert here.context.is_parked(token)
    described = here.context.describe().members
    here.ids["static"] = next(d.member_id for d in described if d.group_instance_id == INSTANCE)


def _replace_static(here: Scene) -> None:
    here.ids["fenced"] = here.ids["static"]
    answer = here.context.joined(here.join("", INSTANCE, client_id="static"))
    assert answer.error == 0
    here.ids["static"] = answer.member_id
    assert here.state == "Stable"


# --- who asks ---------------------------------------------------------------------------


def asker(here: Scene, who: str) -> tuple[str, str | None]:
    """Return member id and group instance id of *who*."""
    if who.startswith("pending"):
        member_id = here.given_id("late")
        return member_id, {"pending as i-1": INSTANCE, "pending as i-9": STRANGER}.get(who)
    ids = here.ids
    return {
        "new": ("", None),
        "nobody": ("", None),
        "unknown": ("spark-ffff", None),
        "new static": ("", STRANGER),
        "restarted": ("", INSTANCE),
        "admin of i-1": ("", INSTANCE),
        "admin of i-9": ("", STRANGER),
        "leader": (ids["leader"], None),
        "follower": (ids["follower"], None),
        "follower as i-1": (ids["follower"], INSTANCE),
        "follower as i-9": (ids["follower"], STRANGER),
        "rejoiner": (ids["rejoiner"], None),
        "static": (ids["static"], INSTANCE),
        "static by id": (ids["static"], None),
        "fenced": (ids.get("fenced", ""), INSTANCE),
        "fenced by id": (ids.get("fenced", ""), None),
        "everyone": ("", None),
        "all but rejoiner": ("", None),
    }[who]


def _generation(here: Scene, how: set[str]) -> int:
    if "no generation" in how:
        return -1
    return here.generation + ("future" in how) - ("old" in how)


# --- what is asked ----------------------------------------------------------------------

Answer = tuple[int | str, str | None]  # The error, or PARKED; and the error in words.


def _answered(here: Scene, token: int) -> Answer:
    if here.context.is_parked(token):
        return PARKED, None
    response = here.context.answers[token]
    return response.error, getattr(response, "message", None)  # type: ignore[attr-defined]  # none of those that have no error


def join_group(here: Scene, who: str, how: set[str]) -> Answer:
    """JoinGroup."""
    member_id, instance_id = asker(here, who)
    protocols: dict[str, bytes] = {"range": here.metadata}
    if "changed" in how:
        protocols = {"range": subscription("flights", "trains")}
    elif "other data" in how:
        data = Subscription(("flights",), user_data=b"sticky")
        protocols = {"range": encode_subscription(data)}
    elif "alien" in how:
        protocols = {"own": here.metadata}
    elif "nothing" in how:
        protocols = {}
    if "last" in how:
        here.rejoin_all(but="static" if who == "restarted" else who)
    token = here.join(
        member_id,
        instance_id,
        protocols=protocols,
        session_ms=SESSION_MS,
        protocol_type="connect" if "other type" in how else None,
    )
    return _answered(here, token)


def sync_group(here: Scene, who: str, how: set[str]) -> Answer:
    """SyncGroup."""
    member_id, instance_id = asker(here, who)
    given: list[tuple[str, bytes]] = []
    if "assigns" in how:
        given = [(here.ids[other], assignment(name)) for other, name in OWNED.items()]
    elif "assigns a stranger" in how:
        given = [("spark-ffff", assignment("flights-0"))]
    elif "assigns one twice" in how:
        given = [(here.ids[other], assignment("flights-0")) for other in ("leader", "follower")]
    elif "assigns garbage" in how:
        given = [(here.ids["follower"], b"\x00\x01garbage")]
    request = m.SyncGroupRequest(
        GROUP,
        _generation(here, how),
        member_id,
        instance_id,
        "connect" if "other type" in how else "consumer" if "named" in how else None,
        "own" if "other name" in how else "range" if "named" in how else None,
        tuple(m.MemberAssignment(*share) for share in given),
    )
    return _answered(here, here.context.send(request))


def heartbeat(here: Scene, who: str, how: set[str]) -> Answer:
    """Heartbeat."""
    member_id, instance_id = asker(here, who)
    request = m.HeartbeatRequest(GROUP, _generation(here, how), member_id, instance_id)
    return _answered(here, here.context.send(request))


def _leave(here: Scene, *leaving: tuple[str, str | None]) -> Answer:
    request = m.LeaveGroupRequest(GROUP, tuple(m.LeavingMember(*who, None) for who in leaving))
    response = here.context.answer(here.context.send(request), m.LeaveGroupResponse)
    assert response.error == 0
    assert list(leaving) == [(left.member_id, left.group_instance_id) for left in response.members]
    errors = {left.error for left in response.members}
    assert len(errors) == 1
    return errors.pop(), response.members[0].message


def leave_group(here: Scene, who: str, _how: set[str]) -> Answer:
    """LeaveGroup; of several members at once if *who* are several."""
    if who in {"everyone", "all but rejoiner"}:
        names = [name for name in OWNED if who == "everyone" or name != "rejoiner"]
        return _leave(here, *((here.ids[name], None) for name in names))
    return _leave(here, asker(here, who))


def offset_commit(here: Scene, who: str, how: set[str]) -> Answer:
    """OffsetCommit of the partition that the asker owns, or of flights-1."""
    member_id, instance_id = asker(here, who)
    name = OWNED.get(who.removesuffix(" by id"), "flights-1")
    partition = (int(name[-1]) + ("another's" in how)) % len(OWNED)
    item = m.PartitionCommit(
        partition,
        7,
        -1,
        "x" * 4_097 if "long metadata" in how else None,
        5 if "expects 5" in how else None,
    )
    items = (item,)
    topics = () if "nothing" in how else (m.TopicCommit("flights", items),)
    request = m.OffsetCommitRequest(GROUP, _generation(here, how), member_id, instance_id, topics)
    response = here.context.answer(here.context.send(request), m.OffsetCommitResponse)
    if response.error or not topics:
        assert response.topics == ()
        return response.error, response.message
    return response.topics[0].partitions[0].error, ""


def offset_fetch(here: Scene, who: str, _how: set[str]) -> Answer:
    """OffsetFetch of one partition, or of all."""
    one = (m.TopicPartitions("flights", (1,)),)
    answer = fetched(
        here.context.shard, m.GroupFetch(GROUP, one if who == "one partition" else None)
    )
    nothing = (m.TopicOffsets("flights", (m.PartitionOffset(1, -1, -1, "", 0),)),)
    assert answer.topics == (nothing if who == "one partition" else ())
    return answer.error, None


def describe_groups(here: Scene, _who: str, _how: set[str]) -> Answer:
    """DescribeGroups."""
    described = here.context.describe()
    return described.error, described.message


def list_groups(here: Scene, who: str, how: set[str]) -> Answer:
    """ListGroups; 69 stands for a group that is not in the list."""
    types = tuple(how)
    states = () if who == "any state" else (who,)
    listed = here.context.listed(states, types)
    return (0 if GROUP in [group.group_id for group in listed] else 69), "not listed"


def delete_groups(here: Scene, who: str, _how: set[str]) -> Answer:
    """DeleteGroups."""
    if who == "with a pending id":
        here.given_id("late")
    outcome, error = here.context.shard.delete_group(GROUP, here.context.now)
    here.context.take(outcome)
    here.context.check()
    return error, "DeleteGroups has no words"


def offset_delete(here: Scene, who: str, _how: set[str]) -> Answer:
    """OffsetDelete of a topic that the members want ("flights"), or of another."""
    request = m.OffsetDeleteRequest(GROUP, (m.TopicPartitions(who, (0,)),))
    response = here.context.answer(here.context.send(request), m.OffsetDeleteResponse)
    if response.error:
        assert response.topics == ()
        return response.error, "OffsetDelete has no words"
    return response.topics[0].partitions[0].error, "OffsetDelete has no words"


def drain_member(here: Scene, who: str, _how: set[str]) -> Answer:
    """DrainMember by client id."""
    response = here.context.drain(who)
    return response.error, "DrainMember has no words"


def alter_offsets(here: Scene, who: str, how: set[str]) -> Answer:
    """AlterOffsets of what a member owns, or of nobody's."""
    topic, partition = OWNED.get(who.removesuffix("'s"), "trains-0").split("-")
    expected = 99 if "wrong" in how else None
    altered = m.AlteredOffset(int(partition), 7, -1, None, expected)
    named = (m.AlteredTopic(topic, (altered,)),)
    request = m.AlterOffsetsRequest(GROUP, named, "removed" in how, None)
    response = here.context.answer(here.context.send(request), m.AlterOffsetsResponse)
    return response.topics[0].partitions[0].error, "AlterOffsets has no words"


def alter_group_retention(here: Scene, who: str, _how: set[str]) -> Answer:
    """AlterGroupRetention."""
    retention_ms = {"an hour": 3_600_000, "for ever": -1, "the setting": None}[who]
    token = here.context.send(m.AlterGroupRetentionRequest(GROUP, retention_ms))
    return _answered(here, token)[0], "AlterGroupRetention has no words"


def describe_rebalances(here: Scene, _who: str, _how: set[str]) -> Answer:
    """DescribeRebalances."""
    request = m.DescribeRebalancesRequest(GROUP, 10)
    response = here.context.shard.describe_rebalances(request)
    return response.error, response.message


def describe_lag(here: Scene, _who: str, _how: set[str]) -> Answer:
    """DescribeLag."""
    response = here.context.lag(GROUP)
    return response.error, response.message


APIS: Final[Mapping[str, Callable[[Scene, str, set[str]], Answer]]] = {
    "JoinGroup": join_group,
    "SyncGroup": sync_group,
    "Heartbeat": heartbeat,
    "LeaveGroup": leave_group,
    "OffsetCommit": offset_commit,
    "OffsetFetch": offset_fetch,
    "DescribeGroups": describe_groups,
    "ListGroups": list_groups,
    "DeleteGroups": delete_groups,
    "OffsetDelete": offset_delete,
    "DrainMember": drain_member,
    "AlterOffsets": alter_offsets,
    "AlterGroupRetention": alter_group_retention,
    "DescribeRebalances": describe_rebalances,
    "DescribeLag": describe_lag,
}
